"""The second run of a test in the same process: fresh fixtures of its own, and nothing shown twice."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import pytest
from _pytest.capture import FDCapture, MultiCapture
from _pytest.logging import LogCaptureHandler, caplog_handler_key, caplog_records_key

from pytest_inplace.findings import Finding
from pytest_inplace.ledger import Suspect
from pytest_inplace.process_state import ProcessState
from pytest_inplace.replay import replay

_OUTCOMES = (Exception, SystemExit, pytest.fail.Exception, pytest.skip.Exception, pytest.exit.Exception)
_OF_THE_RUN = ("funcargs", "_request", "_excinfo", "_instance", "_testcase")


def replay_item(
    item: pytest.Item, before: ProcessState, suspects: Iterable[Suspect]
) -> tuple[list[Finding], BaseException | None]:
    """Run ``item`` again, set-up and tear-down of its own fixtures included, and judge ``suspects``.

    The first run's function-scoped fixtures are torn down before (so that two of them never hold one
    resource), wider ones are shared. Returns the findings and what that tear-down raised, if anything:
    it is the caller's to report. Outcomes of the second run do not count.
    """
    setup_state = item.session._setupstate
    parent = item.parent
    torn_down: BaseException | None = None
    if item in setup_state.stack:
        try:
            setup_state.teardown_exact(parent)  # type: ignore[arg-type]
        except _OUTCOMES as error:
            torn_down = error
    after = ProcessState.capture()
    before.restore()
    kept: dict[str, Any] = {key: item.__dict__[key] for key in _OF_THE_RUN if key in item.__dict__}

    def run() -> None:
        with contextlib.suppress(*_OUTCOMES):  # the first run's outcome is the one that counts
            if hasattr(item, "_initrequest"):
                item._initrequest()
            setup_state.setup(item)
            item.runtest()
        with contextlib.suppress(*_OUTCOMES):
            setup_state.teardown_exact(parent)  # type: ignore[arg-type]

    try:
        with _output_discarded(), _log_discarded(item), warnings.catch_warnings(record=True):
            return replay(run, suspects), torn_down
    finally:
        for key in _OF_THE_RUN:
            item.__dict__.pop(key, None)
        item.__dict__.update(kept)
        after.restore()


def can_replay_now(item: pytest.Item) -> bool:
    """Whether everything around the test (module, class, session) is still set up."""
    chain = item.listchain()
    return list(item.session._setupstate.stack)[: len(chain) - 1] == chain[:-1]


@contextlib.contextmanager
def _output_discarded() -> Iterator[None]:
    capture: MultiCapture[str] = MultiCapture(in_=None, out=FDCapture(1), err=FDCapture(2))
    capture.start_capturing()
    try:
        yield
    finally:
        capture.readouterr()
        capture.stop_capturing()


@contextlib.contextmanager
def _log_discarded(item: pytest.Item) -> Iterator[None]:
    """Log into a handler of our own, which is also what ``caplog`` sees in the second run."""
    root = logging.getLogger()
    handler = LogCaptureHandler()
    keys: tuple[Any, ...] = (caplog_handler_key, caplog_records_key)
    kept = {key: item.stash[key] for key in keys if key in item.stash}
    handlers, root.handlers = root.handlers, [handler]
    level = root.level
    item.stash[caplog_handler_key] = handler
    item.stash[caplog_records_key] = dict.fromkeys(("setup", "call", "teardown"), handler.records)
    try:
        yield
    finally:
        root.handlers = handlers
        root.setLevel(level)
        for key in keys:
            if key in kept:
                item.stash[key] = kept[key]
            elif key in item.stash:
                del item.stash[key]
