"""Timing on a machine that others use, too: modes take turns within each round, and rounds are compared.

A disturbance that lasts longer than a round hits all modes of it, so the ratio within the round stays right;
a shorter one makes one ratio wrong, which the median over the rounds ignores.
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
    refused: dict[str, str] = field(default_factory=dict)

    def ratios(self, mode: str) -> list[float]:
        """The mode's time as a multiple of plain's, round by round."""
        pairs = zip(self.seconds.get(mode, ()), self.seconds["plain"], strict=False)
        return [time / plain for time, plain in pairs]

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
    """Run every mode once in each round, each for about ``budget`` seconds of plain time."""
    timing = Timing(workload)
    step = workload.make()
    step()
    start = clock()
    step()
    repeats = max(1, round(budget / max(clock() - start, 1e-6)))
    for number in range(rounds):
        # Each round begins with another mode: none always comes right after the same one.
        for mode in modes[number % len(modes) :] + modes[: number % len(modes)]:
            if mode in timing.refused:
                continue
            try:
                seconds = _run(step, mode, repeats, clock) / repeats
            except RuntimeError as error:
                timing.refused[mode] = str(error).splitlines()[0]
                timing.seconds.pop(mode, None)
                continue
            timing.seconds.setdefault(mode, []).append(seconds)
    return timing


def _run(step: Callable[[], object], mode: str, repeats: int, clock: Clock) -> float:
    gc.collect()  # nobody pays for what another mode left behind
    with MODES[mode]():
        start = clock()
        for _ in range(repeats):
            step()
        return clock() - start
