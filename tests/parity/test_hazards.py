"""What is right on the CPU by luck is told with its line, and nothing else is."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.integration.support import read_json
from tests.standin import device
from tests.standin.process import run_tests

HERE = Path(__file__).parent
needs_standin = pytest.mark.skipif(device.unavailable() is not None, reason=str(device.unavailable()))


def wanted(source: Path, without: str = "") -> set[tuple[str, str]]:
    """The operator and ``file:line`` of each line that is marked in the source, but for some tests."""
    found, name = set(), ""
    for number, line in enumerate(source.read_text(encoding="utf-8").splitlines(), 1):
        name = line if line.startswith("def ") else name
        mark = re.search(r"# hazard (\w+)$", line)
        if mark is not None and not (without and without in name):
            found.add((mark[1], f"{source.name}:{number}"))
    return found


def told(report: Path) -> set[tuple[str, str]]:
    hazards = [h for t in read_json(report)["tests"] for h in t["parity"]["hazards"]]
    return {(h.partition(" ")[0], re.search(r"(\w+\.py:\d+)\)$", h)[1]) for h in hazards}


@needs_standin
@pytest.mark.parametrize("name", ["hazards.py", "traffic.py"])
def test_each_hazard_is_told(name: str, tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    outcomes = run_tests(HERE / name, tmp_path, "--inplace-parity=standin", f"--inplace-json={report}")
    assert set(outcomes.values()) == {"passed"}, outcomes
    assert told(report) == wanted(HERE / name)


def test_a_machine_without_a_device_sees_them_too(tmp_path: Path) -> None:
    source = HERE / "hazards.py"
    report = tmp_path / "report.json"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_") and k != "CI"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(source), "--inplace-parity=cpu",
         f"--inplace-json={report}", "-k", "not pinned"],
        cwd=HERE, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert told(report) == wanted(source, without="pinned")
    assert "PytestInplaceWarning: on cpu: index_put_ writes different values to one place" in done.stdout
