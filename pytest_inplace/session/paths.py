"""Settings for some files only: the lines of the ini key ``inplace_paths``."""

from __future__ import annotations

import fnmatch
import shlex
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import pytest

from pytest_inplace.reports.findings import rule_for

LATENT = ("error", "warn", "ignore")
REPLAY = ("auto", "never")
_CHOICES = {"check": ("true", "false"), "latent": LATENT, "replay": REPLAY}


@dataclass(frozen=True)
class PathRule:
    """One line: which files, and what holds for them."""

    pattern: str
    changes: dict[str, Any] = field(default_factory=dict)
    allow: frozenset[str] = frozenset()
    reason: str | None = None

    def matches(self, path: str) -> bool:
        """Whether a path, relative to rootdir, is the file, lies in the folder, or fits the pattern."""
        path = path.replace("\\", "/")
        return (
            path == self.pattern
            or path.startswith(f"{self.pattern}/")
            or fnmatch.fnmatchcase(path, self.pattern)
        )


def parse(lines: Iterable[str], source: str) -> tuple[PathRule, ...]:
    """The rules of ``PATH key=value ...`` lines.

    Raises:
        pytest.UsageError: for a line that does not say what holds where; it begins with ``source``.
    """
    return tuple(_parse(line, source) for line in lines if line.strip())


def _parse(line: str, source: str) -> PathRule:
    def wrong(problem: str) -> pytest.UsageError:
        return pytest.UsageError(f"{source}: {line.strip()!r}: {problem}")

    try:
        pattern, *settings = shlex.split(line, comments=True)
    except ValueError as error:
        raise wrong(str(error)) from None
    if not settings:
        raise wrong(
            "it says nothing; write PATH key=value ..., with check, latent, replay, allow and reason as keys"
        )
    changes: dict[str, Any] = {}
    allow: frozenset[str] = frozenset()
    reason = None
    for setting in settings:
        key, equals, value = setting.partition("=")
        if key in _CHOICES and equals:
            if value not in _CHOICES[key]:
                raise wrong(f"{key}={value!r} is not one of {', '.join(_CHOICES[key])}")
            changes[key] = value == "true" if key == "check" else value
        elif key == "allow" and equals:
            try:
                allow = frozenset(rule_for(code).code for code in value.split(",") if code)
            except KeyError as error:
                raise wrong(error.args[0]) from None
        elif key == "reason" and equals:
            reason = value
        else:
            raise wrong(f"{setting!r} is not check=, latent=, replay=, allow= or reason=")
    if allow and not (reason and reason.strip()):
        raise wrong('allow needs a reason="...", a text that says why')
    if changes.get("replay") == "never":
        changes["replay_off_because"] = "off by inplace_paths"
    return PathRule(pattern.replace("\\", "/").rstrip("/"), changes, allow, reason)
