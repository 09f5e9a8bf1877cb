"""The baseline of a run: read once, in the main process, and written there; workers are sent its text."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

from pytest_inplace.reports import baseline
from pytest_inplace.reports.baseline import Baseline, Key
from pytest_inplace.reports.findings import Finding
from pytest_inplace.session import files
from pytest_inplace.session.options import Settings

WORKER_KEY = "inplace_baseline"


class BaselineOfRun:
    """What is accepted in this run, and what becomes of the file."""

    def __init__(self, path: Path, known: Baseline, settings: Settings, root: Path) -> None:
        self.path = path
        self.known = known
        self._updating = settings.update_baseline
        self._latent = settings.latent != "ignore"
        self._parity = settings.parity is not None
        self._root = root

    def accept(
        self, item: pytest.Item, findings: list[Finding], error: BaseException | None
    ) -> list[Finding]:
        """The findings, those marked that the baseline accepts (or takes up, when it is updated).

        What PyTorch or a test's own question raised fails the test whatever we say of it.
        """
        from pytest_inplace.engine.guard import InplaceError, chain
        from pytest_inplace.session.reporting import relative

        if any(isinstance(each, InplaceError) for each in chain(error)):
            return findings
        take_up = self._updating and not _expected_to_fail(item)
        return [
            dataclasses.replace(finding, accepted="baseline")
            if not (finding.raised and error is not None)
            and (take_up or self.known.accepts(relative(finding, self._root)))
            else finding
            for finding in findings
        ]

    def dumps(self) -> str:
        return self.known.dumps()

    def conclude(self, records: Collection[dict[str, Any]], interrupted: bool) -> list[str]:
        """Write the file if that was asked for; the result is what the end of the run says about it."""
        stale = self.known.stale(records, self._gone, self._latent, self._parity)
        accepted = sum(f["accepted"] == "baseline" for r in records for f in r["findings"])
        name = self._name()
        if not self._updating:
            lines = (
                [f"{name}: {accepted} {'finding' if accepted == 1 else 'findings'} accepted"]
                if accepted
                else []
            )
            lines += [f"{name}: stale, no test shows it any more: {_describe(key)}" for key in stale]
            if stale:
                lines.append("to remove stale entries: the same command with --inplace-update-baseline")
            return lines
        if interrupted or not records:
            why = "the run did not come to its end" if interrupted else "no test was checked"
            return [f"{name} was not updated: {why}"]
        updated = self.known.updated(records, stale)
        try:
            files.write(self.path, updated.dumps())
        except OSError as error:
            return [f"cannot write {self.path}: {error.strerror or error}"]
        new = len(updated.entries.keys() - self.known.entries.keys())
        lines = [f"{name} updated: {len(updated.entries)} entries, {new} new, {len(stale)} removed"]
        refused = sum(f["accepted"] is None for r in records for f in r["findings"])
        if refused:
            lines.append(f"not put into {name}, for their tests fail on their own: {refused} findings")
        return lines

    def _name(self) -> str:
        try:
            return self.path.relative_to(self._root).as_posix()
        except ValueError:
            return str(self.path)

    def _gone(self, nodeid: str) -> bool:
        """Whether the file of a test, or its name in the file, is no longer there."""
        path, _, rest = nodeid.partition("::")
        if not rest:
            return not (self._root / path).exists()
        name = re.split(r"\[", rest, maxsplit=1)[0].rpartition("::")[2]
        try:
            text = (self._root / path).read_bytes()
        except OSError:
            return True
        return re.search(rb"\b" + re.escape(name.encode()) + rb"\b", text) is None


def load(config: pytest.Config, settings: Settings, root: Path) -> BaselineOfRun | None:
    """The baseline that the settings name.

    Raises:
        pytest.UsageError: if it cannot be read, or is no baseline.
    """
    if settings.baseline is None:
        return None
    sent = getattr(config, "workerinput", {}).get(WORKER_KEY)
    if sent is not None:
        return BaselineOfRun(settings.baseline, baseline.loads(sent), settings, root)
    path = settings.baseline
    wrong = f"{settings.baseline_source}: {path}"
    try:
        known = baseline.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not settings.update_baseline:
            raise pytest.UsageError(
                f"{wrong} does not exist; --inplace-update-baseline makes it from what is found"
            ) from None
        known = Baseline()
    except OSError as error:
        raise pytest.UsageError(f"{wrong}: cannot read it: {error.strerror or error}") from None
    except UnicodeDecodeError:
        raise pytest.UsageError(f"{wrong}: not a baseline: not UTF-8 text") from None
    except baseline.BaselineError as error:
        raise pytest.UsageError(f"{wrong}: {error}") from None
    return BaselineOfRun(path, known, settings, root)


def _expected_to_fail(item: pytest.Item) -> bool:
    """Whether the test is under an ``xfail`` that holds: to accept its findings would make it pass."""
    try:
        from _pytest.skipping import xfailed_key
    except ImportError:
        return item.get_closest_marker("xfail") is not None
    return item.stash.get(xfailed_key, None) is not None


def _describe(key: Key) -> str:
    return f"{key.path}: {key.rule} in {key.function}: {key.source or '(no source)'}"
