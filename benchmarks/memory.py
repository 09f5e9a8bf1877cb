"""Peak memory of one workload in one mode, in a process of its own."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

from benchmarks.modes import MODES
from benchmarks.workloads import WORKLOADS

ROOT = Path(__file__).parent.parent


def peak(workload: str, mode: str) -> tuple[float, float]:
    """Megabytes of the whole process at most, and how much of that came with the workload."""
    command = [sys.executable, "-m", "benchmarks.memory", workload, mode]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    before, most = json.loads(done.stdout)
    return most, most - before


def _status(key: str) -> float:
    found = re.search(rf"{key}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1024 if found else float("nan")


def main() -> None:
    name, mode = sys.argv[1:]
    workload = next(w for w in WORKLOADS if w.name == name)
    with MODES[mode]():  # what the mode itself loads belongs to no workload
        pass
    before = _status("VmRSS")
    step = workload.make()
    with MODES[mode]():
        for _ in range(1 if workload.heavy else 3):
            step()
    print(json.dumps([before, _status("VmHWM")]))


if __name__ == "__main__":
    main()
