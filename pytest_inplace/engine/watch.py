"""The hooks in place for a while: entered into this thread's stack of saved-tensor hooks, and taken out."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from pytest_inplace.engine import (
    children,
    coexist,
    finite_differences,
    functions,
    gradient_hooks,
    references,
    threads,
    user_hooks,
)
from pytest_inplace.engine.lanes import Lane
from pytest_inplace.engine.ledger import Ledger
from pytest_inplace.engine.releases import follow_hooks, top_of_hooks
from pytest_inplace.engine.saved import Pack, Unpack, is_ours, make_pack, make_unpack

_active: list[Watch] = []


def active_ledger() -> Ledger | None:
    """The ledger of the program that runs now, or ``None``."""
    return _active[-1].ledger if _active else None


def active_lens() -> Any:
    """The microscope that is watching now, or ``None``."""
    return _active[-1].lens if _active else None


def active_watch() -> Watch | None:
    """The watch over the program that runs now, or ``None``."""
    return _active[-1] if _active else None


class Watch:
    """Saved-tensor hooks over this thread, and those that it starts, from :meth:`start` to :meth:`stop`."""

    def __init__(
        self, ledger: Ledger, unpack: Unpack | None = None, lens: Any = None, walk: bool = True
    ) -> None:
        self.ledger = ledger
        self.lens = lens
        self._walk = walk
        self._custom_unpack = unpack
        self._pair: tuple[Pack, Unpack] | None = None
        self.children = children.Children(microscope=lens is not None)
        self.threads: dict[int, list[Lane]] = {}
        """The threads that are watched, by their idents, and what they count in, innermost last."""

    def start(self) -> None:
        self._pair = self._make_pair(self.ledger.lanes[0])
        self.resume()

    def _make_pair(self, lane: Lane) -> tuple[Pack, Unpack]:
        return make_pack(self.ledger, lane, self._walk), self._custom_unpack or make_unpack(active_ledger)

    @contextmanager
    def in_thread(self, lane: Lane) -> Iterator[None]:
        """Watch this thread, too, for a while; what it saves is counted in ``lane``."""
        import torch

        here, ident = self.ledger.here, threading.get_ident()
        before, here.lane = here.lane, lane
        lanes = self.threads.setdefault(ident, [])
        lanes.append(lane)
        pair = None
        with self.ledger.guarding("a thread"):
            own = self._make_pair(lane)
            torch._C._autograd._push_saved_tensors_default_hooks(*own)
            pair = own
        if self.lens is not None:
            self.lens.thread_begins()
        try:
            yield
        finally:
            if pair is not None:
                _take_out(pair)
            here.lane = before
            lanes.remove(lane)
            if not lanes:
                self.threads.pop(ident, None)

    def resume(self) -> None:
        """Watch (again), with the hooks on top of this thread's stack."""
        import torch

        follow_hooks()
        autograd = torch._C._autograd
        coexist.install(is_ours, _patches)  # first: where it fails nothing of ours is left behind
        try:
            disabled = autograd._saved_tensors_hooks_get_disabled_error_message()
            if disabled is not None:
                # Some library left hooks switched off for the whole thread: we cannot see, so we say so.
                self._pair = None
                self.ledger.coverage.not_checked("saved-tensor hooks were disabled before the test")
            elif self._pair is not None:
                autograd._push_saved_tensors_default_hooks(*self._pair)
        except BaseException:
            coexist.uninstall()
            raise
        self.ledger.here.lane = self.ledger.lanes[0]
        self.threads[threading.get_ident()] = [self.ledger.lanes[0]]
        _active.append(self)

    def pause(self) -> None:
        """Stop watching for a while; what was saved so far stays checked."""
        if self in _active:
            _active.remove(self)
            coexist.uninstall()
            self.ledger.here.lane = None
            self.threads.pop(threading.get_ident(), None)
            if self._pair is not None:
                _take_out(self._pair)

    def stop(self) -> None:
        """Stop watching for good."""
        self.pause()
        for _ in range(self._unfinished()):
            self.ledger.coverage.not_checked("the end of a thread that outlived the test")
        self.ledger.close()

    def _unfinished(self) -> int:
        """How many other threads have saved tensors and still run."""
        return sum(lane.saves > lane.first for lanes in list(self.threads.values()) for lane in lanes)


def _patches() -> list[tuple[Any, str, Any]]:
    return [
        *functions.patches(active_ledger, active_lens),
        *gradient_hooks.patches(active_ledger, active_lens),
        *user_hooks.patches(active_ledger, active_lens),
        *references.patches(active_ledger),
        *finite_differences.patches(active_ledger),
        *threads.patches(active_watch),
        *children.patches(active_watch),
    ]


def _take_out(pair: tuple[Any, Any]) -> None:
    """End our pair of hooks in this thread, wherever it is."""
    if not coexist.give_up(pair):
        _remove_hooks(pair)


def _remove_hooks(pair: tuple[Any, Any]) -> None:
    """Take our pair out of the stack of hooks, from below hooks that a fixture leaves behind, if any."""
    import torch

    autograd = torch._C._autograd
    above = []
    while (top := top_of_hooks()) is not None:
        autograd._pop_saved_tensors_default_hooks()
        if top == pair:
            break
        above.append(top)
    for pack, unpack in reversed(above):
        autograd._push_saved_tensors_default_hooks(pack, unpack)
