"""A pytest plugin, `-p tests.neighbours.recorder`: it notes in a file what a run showed."""

from __future__ import annotations

import os
import pickle
import re
from collections.abc import Callable
from typing import Any

import pytest

FILE = "INPLACE_TEST_RECORD"
_seen: dict[str, list[Any]] = {}
_noted: dict[str, list[list[Any]]] = {}
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
    """Note values. Each run of the test begins a list of its own, the plugin's second run, too."""
    noted: list[Any] = []
    _noted.setdefault(request.node.nodeid.partition("::")[2], []).append(noted)
    return lambda *values: noted.extend(map(frozen, values))


def _without_traces(text: str) -> str:
    """PyTorch's log of compilations tells all files of the call stack, of which the plugin's are some."""
    return "".join(line for line in text.splitlines(keepends=True) if "torch.__trace:" not in line)


@pytest.hookimpl(trylast=True)
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    crash = getattr(report.longrepr, "reprcrash", None)
    message = report.longrepr[2] if isinstance(report.longrepr, tuple) else crash and crash.message
    # What was captured is compared, too: nothing may be added or lost.
    sections = [(title, shown) for title, text in report.sections if (shown := _without_traces(text))]
    _add(report.nodeid, (report.when, report.outcome, message, sections))
    if hasattr(report, "inplace"):
        _records[report.nodeid.partition("::")[2]] = report.inplace


def pytest_warning_recorded(warning_message: Any, when: str, nodeid: str) -> None:
    text = re.sub(r"\(pid=\d+\)", "(pid=...)", str(warning_message.message))
    _add(nodeid, ("warning", when, warning_message.category.__name__, text))


def pytest_sessionfinish() -> None:
    with open(os.environ[FILE], "wb") as file:
        pickle.dump((_seen, _noted, _records), file)
