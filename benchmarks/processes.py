"""Whole processes: the example project's suite, the start of pytest, many small tests in one session."""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parent.parent
EXAMPLE = ROOT / "example_project"
_INHERITED = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
_ENVIRONMENT = {**_INHERITED, "OMP_NUM_THREADS": "1"}

NO_TORCH = (
    "import pytest\n\n@pytest.mark.parametrize('i', range(20))\ndef test_sum(i):\n    assert i + 1 > i\n"
)
SMALL = (
    "import pytest, torch\n\n@pytest.mark.parametrize('i', range({count}))\ndef test_small(i):\n"
    "    w = torch.ones(4, requires_grad=True)\n    (w * w).sum().backward()\n    assert w.grad is not None\n"
)


@dataclass
class Processes:
    """Seconds of the same command in several ways, one number for each round."""

    what: str
    wall: dict[str, list[float]]
    cpu: dict[str, list[float]]
    target: float | None = None

    def ratio(self, way: str, times: dict[str, list[float]]) -> float:
        base = next(iter(times))
        return statistics.median(a / b for a, b in zip(times[way], times[base], strict=True))


def compare(
    what: str, ways: dict[str, list[str]], cwd: Path, rounds: int, target: float | None = None
) -> Processes:
    """Run ``pytest`` with the arguments of each way in turn; others are compared with the first."""
    wall: dict[str, list[float]] = {way: [] for way in ways}
    cpu: dict[str, list[float]] = {way: [] for way in ways}
    for number in range(-1, rounds):  # the first round fills the caches of bytecode and files
        for way in list(ways)[:: 1 if number % 2 else -1]:
            wall_seconds, cpu_seconds = _run(ways[way], cwd)
            if number >= 0:
                wall[way].append(wall_seconds)
                cpu[way].append(cpu_seconds)
    return Processes(what, wall, cpu, target)


def _run(arguments: list[str], cwd: Path) -> tuple[float, float]:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    start = time.perf_counter()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(command, cwd=cwd, env=_ENVIRONMENT, stdout=output, stderr=output)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode not in (0, 1):
            output.seek(0)
            raise RuntimeError(output.read().decode(errors="replace"))
    return time.perf_counter() - start, usage.ru_utime + usage.ru_stime


def example_suite(rounds: int) -> Processes:
    """The example project's right tests."""
    ways = {"plain": ["tests", "-p", "no:inplace"], "plugin": ["tests", "--inplace-check"]}
    return compare("the example project's suite", ways, EXAMPLE, rounds, 1.15)


def defects(rounds: int) -> list[tuple[str, float, float]]:
    """The example project's defects: name, seconds of the plain test, and as a multiple of that the check's.

    Of both only what lies between set-up and tear-down counts; the check's part holds the second run.
    """
    ways = {"plain": ["-p", "no:inplace"], "plugin": ["--inplace-check"]}
    times: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(rounds):
            for way, options in ways.items():
                junit = Path(folder, "junit.xml")
                # The first optimizer of a process imports this for seconds, which is none of its test's time.
                report = ["-p", "torch._dynamo", f"--junitxml={junit}", "-o", "junit_duration_report=call"]
                _run(["tests_with_defects", *report, *options], EXAMPLE)
                for case in ElementTree.parse(junit).iter("testcase"):
                    name = f"{case.attrib['classname']}::{case.attrib['name']}"
                    seconds = float(case.attrib["time"])
                    times.setdefault(name, {}).setdefault(way, []).append(seconds)
    return [
        (name, min(found["plain"]), min(found["plugin"]) / max(min(found["plain"]), 1e-3))
        for name, found in times.items()
    ]


def start_up(rounds: int) -> Processes:
    """20 tests that need no torch."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_no_torch.py").write_text(NO_TORCH)
        ways = {"absent": ["-p", "no:inplace"], "off": [], "on": ["--inplace-check"]}
        return compare("20 tests without torch", ways, Path(folder), rounds)


def many_tests(rounds: int, count: int) -> Processes:
    """So many tests with three saves each: what a test costs must not grow with their number."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "test_small.py").write_text(SMALL.format(count=count))
        ways = {"plain": ["-p", "no:inplace"], "plugin": ["--inplace-check"]}
        return compare(f"{count} small tests in one session", ways, Path(folder), rounds)
