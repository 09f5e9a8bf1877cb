"""The second run of a test in the same process: fresh fixtures of its own, and nothing shown twice."""

from __future__ import annotations

import contextlib
import functools
import io
import logging
import pdb
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import pytest
from _pytest.capture import FDCapture, MultiCapture
from _pytest.logging import LogCaptureHandler, caplog_handler_key, caplog_records_key
from _pytest.tmpdir import tmppath_result_key

from pytest_inplace.engine.deadline import Deadline
from pytest_inplace.engine.ledger import Suspect
from pytest_inplace.engine.replay import replay
from pytest_inplace.reports.findings import Coverage, Finding
from pytest_inplace.session.companions import benchmarks_kept, no_timeout
from pytest_inplace.session.process_state import Began, ProcessState

Result = TypeVar("Result")

_OF_THE_RUN = ("funcargs", "_request", "_excinfo", "_instance", "_obj", "_testcase")
_LISTS = ("user_properties", "_report_sections")
_REPORTING = ("pytest_runtest_logreport", "pytest_exception_interact")


@dataclass
class TornDown:
    """What an early tear-down raised and wrote: it belongs to the tear-down phase."""

    error: BaseException | None = None
    out: str = ""
    err: str = ""
    records: list[logging.LogRecord] = field(default_factory=list)

    def tell(self) -> None:
        """Write what was written, now that its phase has come."""
        _write(self.out, self.err)
        for record in self.records:
            logging.getLogger().handle(record)


def tear_down(item: pytest.Item) -> TornDown:
    """Tear down the function-scoped fixtures of ``item`` ahead of time, what surrounds it not yet."""
    torn = TornDown()
    # ``tmp_path`` looks there whether to keep its folder; what is torn down ahead of time has failed.
    item.stash.setdefault(tmppath_result_key, {}).setdefault("call", False)
    with _output_aside(item) as written, _log_aside(item) as handler:
        try:
            item.session._setupstate.teardown_exact(item.parent)  # type: ignore[arg-type]
        except KeyboardInterrupt:
            raise
        except BaseException as error:
            torn.error = error
    torn.out, torn.err = written
    torn.records = handler.records
    return torn


def replay_item(
    item: pytest.Item,
    before: Began,
    suspects: Iterable[Suspect],
    children: Iterable[Finding] = (),
    deadline: Deadline | None = None,
    cut: str = "",
    coverage: Coverage | None = None,
) -> list[Finding]:
    """Run ``item`` again and judge ``suspects``; outcomes of the second run do not count."""
    judge = functools.partial(
        replay, suspects=suspects, children=children, deadline=deadline, cut=cut, coverage=coverage
    )
    return run_again(item, before, judge, deadline)


def run_again(
    item: pytest.Item,
    before: Began,
    how: Callable[[Callable[[], Any]], Result],
    deadline: Deadline | None = None,
) -> Result:
    """Run ``item`` again, set-up and tear-down of its own fixtures included.

    The first run's function-scoped fixtures are torn down by now (so that two of them never hold one
    resource), wider ones are shared.

    Args:
        item: the test.
        before: what its first run began with.
        how: is given the run, which returns the error that the test raised; its result is returned.
        deadline: in force until the test begins to be torn down.
    """
    setup_state = item.session._setupstate
    after = ProcessState.capture()

    def run() -> BaseException | None:
        before.state.restore()
        with (
            _as_before_the_run(item),
            benchmarks_kept(item),
            _output_aside(item),
            _output_discarded(),
            _log_aside(item),
            _reports_discarded(item),
            _no_debugger(),
            _lost_errors_ignored(),
            warnings.catch_warnings(record=True),
        ):
            item.stash.setdefault(tmppath_result_key, {})
            with _outcome_ignored() as outcome, deadline or contextlib.nullcontext():
                if hasattr(item, "_initrequest"):
                    item._initrequest()
                if before.names is not None:
                    item.dtest.globs.update(before.names)  # type: ignore[attr-defined]
                setup_state.setup(item)
                if before.call is not None:
                    before.call.restore()
                item.runtest()
            with _outcome_ignored():
                setup_state.teardown_exact(item.parent)  # type: ignore[arg-type]
            kept = getattr(item, "_excinfo", None)  # where pytest keeps the failure of a unittest method
        return outcome[0] if outcome else kept[-1].value if kept else None

    with no_timeout(item):
        try:
            return how(run)
        finally:
            after.restore()


@contextlib.contextmanager
def _outcome_ignored() -> Iterator[list[BaseException]]:
    """The first run's outcome is the one that counts; only the user's own interrupt goes through.

    What was raised is in the list that is yielded.
    """
    raised: list[BaseException] = []
    try:
        yield raised
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raised.append(error)


@contextlib.contextmanager
def _as_before_the_run(item: pytest.Item) -> Iterator[None]:
    """Without what a run leaves in the item, which is put back in the end."""
    kept: dict[str, Any] = {key: item.__dict__[key] for key in _OF_THE_RUN if key in item.__dict__}
    lists = {key: list(getattr(item, key)) for key in _LISTS}
    subtests = _failed_subtests(item)
    failed = dict(subtests) if subtests is not None else {}
    if getattr(item, "cls", None) is not None and "_testcase" not in kept:
        for key in ("_instance", "_obj"):  # a method is to be bound to a new instance
            item.__dict__.pop(key, None)
    item.__dict__.pop("_excinfo", None)
    try:
        yield
    finally:
        for key in _OF_THE_RUN:
            item.__dict__.pop(key, None)
        item.__dict__.update(kept)
        for key, value in lists.items():
            getattr(item, key)[:] = value
        if subtests is not None:
            subtests.clear()
            subtests.update(failed)


def _failed_subtests(item: pytest.Item) -> Any:
    """How many subtests of each test failed, which pytest 9 counts to fail the test for."""
    with contextlib.suppress(ImportError):
        from _pytest.subtests import failed_subtests_key

        return item.config.stash.get(failed_subtests_key, None)
    return None


def _write(out: str, err: str) -> None:
    for stream, text in ((sys.stdout, out), (sys.stderr, err)):
        if text and isinstance(stream, io.TextIOWrapper):
            io.TextIOWrapper.write(stream, text)  # past --capture=tee-sys, which has shown it already


@contextlib.contextmanager
def _output_aside(item: pytest.Item) -> Iterator[list[str]]:
    """Take what is written inside out of pytest's own capture, and leave there what was there before.

    The list that is yielded holds, in the end, what went to stdout and to stderr.
    """
    capture: Any = item.config.pluginmanager.getplugin("capturemanager")
    written = ["", ""]
    if capture is None or not capture.is_globally_capturing():
        yield written
        return
    before = capture.read_global_capture()
    try:
        yield written
    finally:
        written[:] = capture.read_global_capture()
        _write(*before)


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
def _log_aside(item: pytest.Item) -> Iterator[LogCaptureHandler]:
    """Log into a handler of our own, which is also what ``caplog`` sees."""
    root = logging.getLogger()
    handler = LogCaptureHandler()
    keys: tuple[Any, ...] = (caplog_handler_key, caplog_records_key)
    kept = {key: item.stash[key] for key in keys if key in item.stash}
    handlers, root.handlers = root.handlers, [handler]
    level = root.level
    item.stash[caplog_handler_key] = handler
    item.stash[caplog_records_key] = dict.fromkeys(("setup", "call", "teardown"), handler.records)
    try:
        yield handler
    finally:
        root.handlers = handlers
        root.setLevel(level)
        for key in keys:
            if key in kept:
                item.stash[key] = kept[key]
            elif key in item.stash:
                del item.stash[key]


@contextlib.contextmanager
def _reports_discarded(item: pytest.Item) -> Iterator[None]:
    """Nobody is told of reports that the test makes while it runs, as those of subtests."""
    relays = [item.config.hook] if item.ihook is item.config.hook else [item.config.hook, item.ihook]
    kept = [{name: vars(relay)[name] for name in _REPORTING if name in vars(relay)} for relay in relays]
    for relay in relays:
        vars(relay).update(dict.fromkeys(_REPORTING, _unheard))
    try:
        yield
    finally:
        for relay, had in zip(relays, kept, strict=True):
            for name in _REPORTING:
                del vars(relay)[name]
            vars(relay).update(had)


def _unheard(**_: Any) -> None:
    pass


@contextlib.contextmanager
def _lost_errors_ignored() -> Iterator[None]:
    """Nobody is told of errors in threads and destructors, which the first run has told."""
    hooks = threading.excepthook, sys.unraisablehook
    threading.excepthook = lambda _: None
    sys.unraisablehook = lambda _: None
    try:
        yield
    finally:
        threading.excepthook, sys.unraisablehook = hooks


@contextlib.contextmanager
def _no_debugger() -> Iterator[None]:
    """A breakpoint has been met in the first run; a second prompt would not be seen."""
    hooks = sys.breakpointhook, pdb.set_trace
    sys.breakpointhook = pdb.set_trace = lambda *_, **__: None
    try:
        yield
    finally:
        sys.breakpointhook, pdb.set_trace = hooks
