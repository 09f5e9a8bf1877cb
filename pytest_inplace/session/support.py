"""Which releases of its neighbours the plugin was tested with, and what of pytest's own parts it needs."""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import operator
import re

import pytest

TESTED = {
    "pytest": ("8.0", "9.2"),
    "torch": ("2.4", "2.14"),
    "pytest-benchmark": ("4.0", "5.3"),
    "pytest-html": ("4.1", "4.2"),
    "pytest-timeout": ("2.3", "2.4"),
    "pytest-xdist": ("3.5", "3.8"),
}
"""The oldest and the newest release of each that there is code for here."""

_PARTS = {
    "_pytest.capture": ("FDCapture", "MultiCapture"),
    "_pytest.logging": ("LogCaptureHandler", "caplog_handler_key", "caplog_records_key"),
    "_pytest.runner": ("SetupState.setup", "SetupState.teardown_exact"),
    "_pytest.tmpdir": ("tmppath_result_key",),
}
"""What a second run takes hold of in pytest, none of which is promised to stay."""


def untested(config: pytest.Config) -> str | None:
    """A line about neighbours in use of a release that the plugin was not tested with."""
    found = []
    for name, (oldest, newest) in TESTED.items():
        if name.startswith("pytest-") and not config.pluginmanager.hasplugin(name.removeprefix("pytest-")):
            continue
        version = version_of(name)
        if version is not None and not _parts(oldest) <= _parts(version) <= _parts(newest):
            found.append(f"{name} {version} (but with {oldest} to {newest})")
    return f"inplace: not tested with {', '.join(found)}" if found else None


def version_of(name: str) -> str | None:
    """The release of a distribution that is installed; torch is not imported for it."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _parts(version: str) -> tuple[int, ...]:
    """The first two numbers of a version, which is what releases are told apart by."""
    return tuple(int(part) for part in re.findall(r"\d+", version)[:2])


@functools.cache
def no_second_runs() -> str | None:
    """Why this pytest lets no test run a second time, if it does not."""
    wanted = [(name, part) for name, parts in _PARTS.items() for part in parts]
    lacking = next((f"{name}.{part}" for name, part in wanted if not _has(name, part)), None)
    return None if lacking is None else f"pytest {pytest.__version__} has no {lacking}"


def _has(module: str, part: str) -> bool:
    try:
        operator.attrgetter(part)(importlib.import_module(module))
    except (ImportError, AttributeError):
        return False
    return True
