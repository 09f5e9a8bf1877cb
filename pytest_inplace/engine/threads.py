"""Other threads of a watched program: saved-tensor hooks are per thread, so each gets a pair of its own.

Threads and the work given to thread pools are entered as they begin. A thread that was there before, or that
Python did not start, cannot be entered from outside: a backward pass in it is counted as not checked.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from pytest_inplace.engine.lanes import Lane
from pytest_inplace.engine.ledger import Ledger

UNWATCHED = "a backward pass in a thread that was there before the test"


class Watching(Protocol):
    """What a watch offers to threads."""

    ledger: Ledger

    def in_thread(self, lane: Lane) -> AbstractContextManager[None]:
        """Watch this thread, too, for a while."""


ActiveWatch = Callable[[], "Watching | None"]


def patches(active_watch: ActiveWatch) -> list[tuple[Any, str, Any]]:
    """What to replace, by what: ``(owner, attribute, replacement)``."""
    found = [*_of_threads(active_watch), *_of_pools(active_watch)]
    if len(sys._current_frames()) > 1:
        found += _of_backward(active_watch)
    return found


def _of_threads(active_watch: ActiveWatch) -> list[tuple[Any, str, Any]]:
    import _thread

    # Subclasses override run(), and what runs it is the same for all of them.
    bootstrap = threading.Thread._bootstrap_inner  # type: ignore[attr-defined]
    start_new = _thread.start_new_thread

    @functools.wraps(bootstrap)
    def bootstrap_inner(self: threading.Thread) -> None:
        watch = active_watch()
        if watch is None:
            bootstrap(self)
            return
        with watch.in_thread(watch.ledger.new_lane()):
            bootstrap(self)

    @functools.wraps(start_new)
    def start_new_thread(function: Any, *args: Any) -> int:
        watch = active_watch()
        if watch is None or not callable(function):
            return start_new(function, *args)
        lane = watch.ledger.new_lane()

        @functools.wraps(function)
        def entered(*args: Any, **kwargs: Any) -> None:
            with watch.in_thread(lane):
                function(*args, **kwargs)

        return start_new(entered, *args)

    return [
        (threading.Thread, "_bootstrap_inner", bootstrap_inner),
        (_thread, "start_new_thread", start_new_thread),
    ]


def _of_pools(active_watch: ActiveWatch) -> list[tuple[Any, str, Any]]:
    """Work is numbered when it is given to a pool, for which thread takes it is a matter of luck."""
    from concurrent.futures.thread import _WorkItem

    make: Any = _WorkItem.__init__
    perform: Any = _WorkItem.run

    @functools.wraps(make)
    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        make(self, *args, **kwargs)
        watch = active_watch()
        if watch is not None:
            self._pytest_inplace = watch, watch.ledger.new_lane()

    @functools.wraps(perform)
    def run(self: Any, *args: Any, **kwargs: Any) -> None:
        watch, lane = self.__dict__.pop("_pytest_inplace", (None, None))
        if watch is None or watch.ledger.closed:
            perform(self, *args, **kwargs)
            return
        with watch.in_thread(lane):
            perform(self, *args, **kwargs)

    return [(_WorkItem, "__init__", __init__), (_WorkItem, "run", run)]


def _of_backward(active_watch: ActiveWatch) -> list[tuple[Any, str, Any]]:
    import torch

    autograd: Any = torch.autograd
    engine = autograd._engine_run_backward

    @functools.wraps(engine)
    def run_backward(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        watch = active_watch()
        if watch is not None and watch.ledger.here.lane is None:
            watch.ledger.coverage.not_checked(UNWATCHED)
        return engine(*args, **kwargs)

    return [(autograd, "_engine_run_backward", run_backward)]
