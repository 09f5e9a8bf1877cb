"""Does a save cost more the more of them there are? Microseconds that the check adds to each."""

from __future__ import annotations

import gc
import statistics

import torch

from benchmarks.measure import Clock, Timing
from benchmarks.modes import MODES
from benchmarks.workloads import saves_1k


def per_save(timing: Timing, mode: str = "plugin") -> float | None:
    """Microseconds that the mode adds to one save and its use."""
    if timing.workload.saves is None or mode not in timing.seconds:
        return None
    pairs = zip(timing.seconds[mode], timing.beside[mode], strict=True)
    return statistics.median(with_it - plain for with_it, plain in pairs) / timing.workload.saves * 1e6


def by_live_graphs(counts: list[int], rounds: int, clock: Clock) -> dict[int, float]:
    """Seconds for a graph of 1,000 saves under the check while so many graphs of two saves are alive."""
    step = saves_1k()
    found: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(rounds):
        for count in counts:
            with MODES["plugin"]():
                w = torch.ones(4, requires_grad=True)
                alive = [(w * w).sum() for _ in range(count)]
                gc.collect()
                start = clock()
                for _ in range(5):
                    step()
                found[count].append((clock() - start) / 5)
                del alive
    return {count: statistics.median(times) for count, times in found.items()}
