"""Tables of ratios to plain PyTorch, full checking on: ``python -m benchmarks --help``."""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before torch: threads would hide what is on the main one

import torch

from benchmarks import growth, memory, processes
from benchmarks.measure import CLOCKS, Timing, time_workload
from benchmarks.modes import MODES
from benchmarks.workloads import WORKLOADS, Workload


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("workloads", nargs="*", metavar="REGEX", help="only workloads whose names match")
    parser.add_argument("--quick", action="store_true", help="few short rounds, without the heavy workloads")
    parser.add_argument("--rounds", type=int, help="default 15, with --quick 5")
    parser.add_argument("--budget", type=float, help="seconds of plain time in a run (0.1, quick 0.03)")
    parser.add_argument("--modes", default=",".join(MODES), help="names, with commas; default: all of them")
    parser.add_argument("--clock", choices=CLOCKS, default="cpu", help="processor time (default) or wall")
    parser.add_argument("--no-memory", action="store_true", help="leave out peak memory")
    parser.add_argument("--no-processes", action="store_true", help="leave out whole processes")
    arguments = parser.parse_args()
    unknown = [mode for mode in arguments.modes.split(",") if mode not in MODES]
    if unknown:
        parser.error(f"--modes: {unknown[0]!r} is not one of {', '.join(MODES)}")
    return arguments


def main() -> int:
    arguments = _arguments()
    torch.set_num_threads(1)
    modes = [mode for mode in dict.fromkeys(arguments.modes.split(",")) if mode != "plain"]
    rounds = arguments.rounds or (5 if arguments.quick else 15)
    budget = arguments.budget or (0.03 if arguments.quick else 0.1)
    print(
        f"torch {torch.__version__}, Python {platform.python_version()}, {arguments.clock} time, "
        f"{rounds} rounds"
    )
    chosen = [
        w
        for w in WORKLOADS
        if any(re.search(r, w.name) for r in arguments.workloads)
        or (not arguments.workloads and not (arguments.quick and w.heavy))
    ]
    timings = _workloads(arguments, modes, chosen, rounds, budget)
    _growth(timings, rounds, arguments)
    if not arguments.no_processes and not arguments.workloads:
        _processes(3 if arguments.quick else 7, 100 if arguments.quick else 1000)
        _defects(1 if arguments.quick else 3)
    return 0


def _workloads(
    arguments: argparse.Namespace, modes: list[str], chosen: list[Workload], rounds: int, budget: float
) -> list[Timing]:
    print(
        "\nratio to plain, median (quartiles) of the rounds; target: for the plugin; peak: MB of the process"
    )
    columns = "".join(f"{mode:>21}" for mode in modes)
    print(f"{'workload':22}{'plain ms':>9}{columns}{'target':>8}{'peak plain':>12}{'plugin':>15}")
    timings = []
    for workload in chosen:
        heavy = max(3, rounds // 3) if workload.heavy else rounds
        timing = time_workload(workload, modes, heavy, budget, CLOCKS[arguments.clock])
        timings.append(timing)
        cells = "".join(f"{_cell(timing, mode):>21}" for mode in modes)
        target = f"{workload.target:.2f}" if workload.target else ""
        print(f"{workload.name:22}{timing.plain * 1e3:9.2f}{cells}{target:>8}", end="", flush=True)
        print("" if arguments.no_memory else _memory(workload.name), flush=True)
        for mode, why in timing.refused.items():
            print(f"    {mode}: {why}")
    return timings


def _cell(timing: Timing, mode: str) -> str:
    ratio = timing.ratio(mode)
    if ratio is None:
        return "refused"
    low, high = timing.spread(mode)
    return f"{ratio:.2f} ({low:.2f}-{high:.2f})"


def _memory(name: str) -> str:
    if not os.path.exists("/proc/self/status"):
        return "   (needs /proc)"
    plain, plugin = memory.peak(name, "plain")[0], memory.peak(name, "plugin")[0]
    return f"{plain:12.0f}{plugin:8.0f} {plugin / plain:5.2f}x"


def _growth(timings: list[Timing], rounds: int, arguments: argparse.Namespace) -> None:
    costs = {t.workload.saves: cost for t in timings if (cost := growth.per_save(t)) is not None}
    if not costs:
        return
    print("\ngrowth: what the plugin adds to a save and its use")
    for saves, cost in costs.items():
        print(f"  {saves:>7,} saves in one graph: {cost:.2f} us each")
    counts = [0, 1000] if arguments.quick else [0, 1000, 20000]
    times = growth.by_live_graphs(counts, min(rounds, 7), CLOCKS[arguments.clock])
    for count, seconds in times.items():
        print(f"  1,000 saves while {count:>6,} other graphs live: {seconds * 1e3:.2f} ms")


def _processes(rounds: int, many: int) -> None:
    print(f"\nwhole processes, median of {rounds} rounds: ratio of wall time, of processor time")
    few = many // 10
    for found in (
        processes.example_suite(rounds),
        processes.start_up(rounds),
        processes.many_tests(max(3, rounds // 2), few),
        processes.many_tests(max(3, rounds // 2), many),
    ):
        for way in list(found.wall)[1:]:
            wall, cpu = found.ratio(way, found.wall), found.ratio(way, found.cpu)
            target = f", target {found.target:.2f}" if found.target else ""
            seconds = min(next(iter(found.wall.values())))
            print(f"  {found.what}, {way}: {wall:.3f}, {cpu:.3f}  ({seconds:.2f} s at best{target})")


def _defects(rounds: int) -> None:
    found = sorted(processes.defects(rounds), key=lambda each: -each[2])
    print("\nthe example project's defects: the test's first and second run, as a multiple of the plain test")
    print(f"  median {statistics.median(ratio for _, _, ratio in found):.1f}, target 10; the most:")
    for name, plain, ratio in found[:5]:
        print(f"  {ratio:6.1f}  {name} ({plain:.3f} s plain)")


if __name__ == "__main__":
    sys.exit(main())
