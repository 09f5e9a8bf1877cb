"""A limit for the time that a second run may take: beyond it the run is broken off."""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType, TracebackType

GRACE = 0.5
"""Seconds after which the alarm rings for a thread that has not looked at the clock by itself."""
AGAIN = 2.0
"""Seconds until the next interrupt: ``subTest`` of unittest catches whatever is raised, and goes on."""


class CutShort(BaseException):
    """Raised in the user's code where its second run has lasted too long, as if it were interrupted there."""


class Deadline:
    """Seconds that the blocks inside may last together. What follows a block, as tear-down, is never cut.

    Whoever traces the run calls :meth:`check` often. What waits in C, for a lock or for the network, never
    comes there: an alarm interrupts it, if it is in the main thread and the user has no alarm of his own.
    """

    def __init__(self, seconds: float) -> None:
        self.passed = False
        self._left = seconds
        self._ends: float | None = None
        self._thread = 0
        self._has_alarm = False

    def __enter__(self) -> Deadline:
        self._thread = threading.get_ident()
        self._ends = time.monotonic() + self._left
        if _alarm_is_free():
            self._has_alarm = True
            signal.signal(signal.SIGALRM, self._ring)
            signal.setitimer(signal.ITIMER_REAL, max(self._left, 0.0) + GRACE, AGAIN)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        ends, self._ends = self._ends, None
        if self._has_alarm:
            self._has_alarm = False
            if signal.getsignal(signal.SIGALRM) == self._ring:  # the user has not set another one meanwhile
                signal.setitimer(signal.ITIMER_REAL, 0)
                signal.signal(signal.SIGALRM, signal.SIG_DFL)
        if ends is not None:
            self._left = ends - time.monotonic()

    def check(self) -> None:
        """Raise :class:`CutShort` in the thread of the block if its time is over."""
        if self._ends is None or time.monotonic() < self._ends or threading.get_ident() != self._thread:
            return
        self._ends = time.monotonic() + AGAIN
        self.passed = True
        raise CutShort

    def _ring(self, number: int, frame: FrameType | None) -> None:
        self.check()


def _alarm_is_free() -> bool:
    if threading.current_thread() is not threading.main_thread() or not hasattr(signal, "SIGALRM"):
        return False
    idle = signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    return idle and not signal.getitimer(signal.ITIMER_REAL)[0]
