"""Timing on a machine that others use, too: modes take turns within each round, and rounds are compared.

Every run of a mode stands between two short runs of plain and is compared with their mean. A disturbance
that lasts longer hits all three, so the ratio stays right; a shorter one makes one ratio wrong, which the
median over the rounds ignores.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from benchmarks.modes import MODES
from benchmarks.workloads import Workload

Clock = Callable[[], float]
# Processor time of this process does not count what others do meanwhile; the wall clock does.
CLOCKS: dict[str, Clock] = {"cpu": time.process_time, "wall": time.perf_counter}


@dataclass
class Timing:
    """Seconds for one run of a workload, by mode, one number for each round."""

    workload: Workload
    seconds: dict[str, list[float]] = field(default_factory=dict)
    beside: dict[str, list[float]] = field(default_factory=dict)
    """Seconds for the runs of plain before and after, on average."""
    refused: dict[str, str] = field(default_factory=dict)

    def ratios(self, mode: str) -> list[float]:
        """The mode's time as a multiple of plain's, round by round."""
        pairs = zip(self.seconds.get(mode, ()), self.beside.get(mode, ()), strict=True)
        return [time / plain for time, plain in pairs]

    @property
    def plain(self) -> float:
        """The median of plain's own times."""
        return statistics.median(each for times in self.beside.values() for each in times)

    def ratio(self, mode: str) -> float | None:
        """The median over the rounds."""
        ratios = self.ratios(mode)
        return statistics.median(ratios) if ratios else None

    def spread(self, mode: str) -> tuple[float, float]:
        """The quartiles over the rounds."""
        ratios = self.ratios(mode)
        if len(ratios) < 2:
            return ratios[0], ratios[0]
        low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
        return low, high


def time_workload(workload: Workload, modes: list[str], rounds: int, budget: float, clock: Clock) -> Timing:
    """Run every mode once in each round, for as many steps as take plain about ``budget`` seconds."""
    timing = Timing(workload)
    step = workload.make()
    step()
    start = clock()
    step()
    repeats = max(1, round(budget / max(clock() - start, 1e-6)))
    for number in range(rounds):
        # Each round begins with another mode: none always comes right after the same one.
        before = _run(step, "plain", repeats, clock) / repeats
        for mode in modes[number % len(modes) :] + modes[: number % len(modes)]:
            if mode in timing.refused:
                continue
            try:
                seconds = _run(step, mode, repeats, clock) / repeats
            except RuntimeError as error:
                timing.refused[mode] = str(error).splitlines()[0]
                continue
            after = _run(step, "plain", repeats, clock) / repeats
            timing.seconds.setdefault(mode, []).append(seconds)
            timing.beside.setdefault(mode, []).append((before + after) / 2)
            before = after
    return timing


def _run(step: Callable[[], object], mode: str, repeats: int, clock: Clock) -> float:
    gc.collect()  # nobody pays for what another mode left behind
    with MODES[mode]():
        start = clock()
        for _ in range(repeats):
            step()
        return clock() - start
