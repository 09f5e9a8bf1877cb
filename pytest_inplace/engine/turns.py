"""One thread at a time, instruction by instruction, while writes are watched for.

Whoever has the turn is the only one that runs the user's code, so a write that is seen when its instruction
has ended is its own. A thread that waits for another loses its turn, and so does one that takes long; while
one of the latter is out, nobody can be sure whose a write was.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Collection
from types import FrameType

_WAITING = frozenset(
    {"threading", "queue", "concurrent", "selectors", "socket", "asyncio", "multiprocessing"}
)
_PATIENCE = 0.05
_LOOK_AGAIN = 0.001


class Turns:
    """Whose turn it is among ``threads``, the idents of the threads that are watched."""

    def __init__(self, threads: Collection[int]) -> None:
        self._threads = threads
        self._condition = threading.Condition()
        self._holder: int | None = None
        self._waiting = 0
        self._out: set[int] = set()

    def take(self) -> bool:
        """Get the turn; the result is whether what this thread has just done it did alone."""
        if len(self._threads) < 2:
            self._holder = None
            self._out.clear()
            return True
        me = threading.get_ident()
        with self._condition:
            self._wait(me)
            self._holder = me
            self._out.discard(me)
            if not self._out:
                return True
            running = sys._current_frames()
            return all(ident not in running or _waits(running[ident]) for ident in self._out)

    def pass_on(self) -> None:
        """Let one of those who wait go first, then get the turn again."""
        if not self._waiting:
            return
        with self._condition:
            if self._holder == threading.get_ident():
                self._holder = None
            self._condition.notify()
            self._condition.wait(_LOOK_AGAIN)
        self.take()

    def _wait(self, me: int) -> None:
        until = time.monotonic() + _PATIENCE
        self._waiting += 1
        try:
            while self._holder is not None and self._holder != me:
                if self._condition.wait(_LOOK_AGAIN):
                    continue
                frame = sys._current_frames().get(self._holder)
                if frame is None or _waits(frame):
                    return
                if time.monotonic() > until:
                    self._out.add(self._holder)
                    return
        finally:
            self._waiting -= 1


def _waits(frame: FrameType) -> bool:
    """Whether a thread is in code that waits for other threads."""
    module = frame.f_globals.get("__name__")
    return isinstance(module, str) and module.partition(".")[0] in _WAITING
