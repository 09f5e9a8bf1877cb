"""A limit for the time that a second run may take: beyond it the run is broken off."""

from __future__ import annotations

import threading
import time
from types import TracebackType


class CutShort(BaseException):
    """Raised in the user's code where its second run has lasted too long, as if it were interrupted there."""


class Deadline:
    """Seconds that the blocks inside may last together. What follows a block, as tear-down, is never cut."""

    def __init__(self, seconds: float) -> None:
        self.passed = False
        self._left = seconds
        self._ends: float | None = None
        self._thread = 0

    def __enter__(self) -> Deadline:
        self._thread = threading.get_ident()
        self._ends = time.monotonic() + self._left
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._ends is not None:
            self._left = self._ends - time.monotonic()
            self._ends = None

    def check(self) -> None:
        """Raise :class:`CutShort` in the thread of the block, once, if its time is over."""
        if self._ends is None or time.monotonic() < self._ends or threading.get_ident() != self._thread:
            return
        self._ends = None
        self.passed = True
        raise CutShort
