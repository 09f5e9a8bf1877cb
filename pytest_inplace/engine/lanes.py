"""How the saves of a watched program are numbered: by thread, so that a second run numbers them the same."""

from __future__ import annotations

import math
import threading


class Lane:
    """The counts of one thread of a watched program.

    What a thread saves is numbered apart from what others save, so that a second run numbers it the same
    whichever thread comes first.
    """

    __slots__ = ("acknowledged", "calls", "first", "holds", "saves", "unclaimed")
    BITS = 32
    BEYOND = 1
    """The number of the lane for what is numbered apart, see :meth:`Ledger.beyond`."""

    def __init__(self, number: int) -> None:
        self.first = self.saves = self.acknowledged = self.holds = self.calls = number << Lane.BITS
        self.unclaimed: list[list[float]] = []
        """From and to which number: saves that nobody was meant to use."""

    def span_from(self, number: int) -> list[float]:
        """A span of unclaimed saves from this number on; whoever opens it sets its end."""
        if not self.unclaimed or self.unclaimed[-1][1] != number:
            self.unclaimed.append([number, math.inf])
        span = self.unclaimed[-1]
        span[1] = math.inf
        return span

    def acknowledges(self, ordinal: int) -> bool:
        """Whether this save is no finding if it is never used."""
        return ordinal < self.acknowledged or any(start <= ordinal < end for start, end in self.unclaimed)

    @staticmethod
    def position(ordinal: int) -> int:
        """The number of a save among those of its thread."""
        return ordinal & ((1 << Lane.BITS) - 1)

    @property
    def counts(self) -> tuple[int, int, int]:
        return self.saves, self.holds, self.calls

    @counts.setter
    def counts(self, counts: tuple[int, int, int]) -> None:
        self.saves, self.holds, self.calls = counts


class Here(threading.local):
    """The lane of this thread, if the thread is watched."""

    lane: Lane | None = None
