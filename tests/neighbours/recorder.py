"""A pytest plugin, `-p tests.neighbours.recorder`: it notes in a file what a run showed."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from typing import Any

import pytest

FILE = "INPLACE_TEST_RECORD"
_seen: dict[str, list[Any]] = {}
_records: dict[str, Any] = {}


def frozen(value: Any) -> Any:
    """Something to compare in place of a value: a tensor bit for bit."""
    import torch

    if isinstance(value, torch.Tensor):
        dense = value.detach().contiguous()
        return str(dense.dtype), tuple(dense.shape), dense.reshape(-1).view(torch.uint8).numpy().tobytes()
    if isinstance(value, list | tuple):
        return [frozen(item) for item in value]
    return value


def _add(nodeid: str, *what: Any) -> None:
    _seen.setdefault(nodeid.partition("::")[2], []).extend(what)


@pytest.fixture
def record(request: pytest.FixtureRequest) -> Callable[..., None]:
    return lambda *values: _add(request.node.nodeid, *map(frozen, values))


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    crash = getattr(report.longrepr, "reprcrash", None)
    # What was captured is compared, too: nothing may be added or lost.
    _add(report.nodeid, (report.when, report.outcome, crash and crash.message, report.sections))
    if hasattr(report, "inplace"):
        _records[report.nodeid.partition("::")[2]] = report.inplace


def pytest_warning_recorded(warning_message: Any, when: str, nodeid: str) -> None:
    _add(nodeid, ("warning", when, warning_message.category.__name__, str(warning_message.message)))


def pytest_sessionfinish() -> None:
    with open(os.environ[FILE], "wb") as file:
        pickle.dump((_seen, _records), file)
