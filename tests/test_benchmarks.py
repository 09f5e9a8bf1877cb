"""The benchmarks run and measure what they say; no timing is judged here."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import memory
from benchmarks.measure import CLOCKS, time_workload
from benchmarks.modes import MODES
from benchmarks.workloads import WORKLOADS

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("workload", [w for w in WORKLOADS if not w.heavy], ids=lambda w: w.name)
def test_every_workload_is_a_right_program(workload) -> None:  # type: ignore[no-untyped-def]
    step = workload.make()
    with MODES["plugin"]():  # which refuses a suspect
        step()


def test_every_mode_is_timed_once_a_round() -> None:
    timing = time_workload(WORKLOADS[0], list(MODES), rounds=2, budget=0.0, clock=CLOCKS["wall"])
    assert {mode: len(seconds) for mode, seconds in timing.seconds.items()} == dict.fromkeys(MODES, 2)
    assert timing.plain > 0
    low, high = timing.spread("anomaly")
    assert low <= (timing.ratio("anomaly") or 0) <= high


def test_memory_is_that_of_a_process_of_its_own() -> None:
    if not os.path.exists("/proc/self/status"):
        pytest.skip("needs /proc")
    most, grown = memory.peak("weight-16mb", "plain")
    assert most > grown > 16  # the weight alone


def test_the_command_prints_a_line_for_each_workload() -> None:
    command = [
        sys.executable,
        "-m",
        "benchmarks",
        "--quick",
        "--rounds",
        "1",
        "--no-memory",
        "gan",
        "mlp-tiny",
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    first_words = [line.split()[0] for line in done.stdout.splitlines() if line]
    assert "gan-step" in first_words
    assert "mlp-tiny" in first_words
    assert "cnn" not in first_words


def test_an_unknown_mode_is_refused() -> None:
    command = [sys.executable, "-m", "benchmarks", "--modes", "fast"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "'fast' is not one of plain, plugin" in done.stderr
