"""What runs on the stand-in device, on CUDA: user styles agree, rounding is no finding."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.integration.support import read_json

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "parity"


def records(program: str, folder: Path, *options: str) -> dict[str, dict[str, Any]]:
    """One record for each test of a file, run with ``--inplace-parity=cuda`` in a process of its own."""
    report = folder / "report.json"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment["PYTHONPATH"] = str(ROOT)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.gpu.plugin",
         str(PROGRAMS / program), "--inplace-parity=cuda", f"--inplace-json={report}", *options],
        cwd=ROOT, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert report.exists(), done.stdout + done.stderr
    print(done.stdout[-4000:])
    return {t["nodeid"].rpartition("::")[2]: t for t in read_json(report)["tests"]}


def verdicts(found: dict[str, dict[str, Any]], verdict: str) -> dict[str, str | None]:
    return {n: t["parity"]["reason"] for n, t in found.items() if t["parity"]["verdict"] == verdict}


def test_user_styles_agree(tmp_path: Path) -> None:
    # One names the device that torch.cuda.is_available() chooses, in the run on the CPU too.
    found = records("user_style.py", tmp_path, "-k", "not names_the_cpu")
    assert verdicts(found, "differs") == {}
    assert verdicts(found, "not portable") == {}


def test_rounding_is_no_finding(tmp_path: Path) -> None:
    found = records("noisy.py", tmp_path)
    assert verdicts(found, "differs") == {}
    assert sum(t["parity"]["points"] for t in found.values()) > 1000


def test_a_device_only_finding(tmp_path: Path) -> None:
    found = records("verdicts.py", tmp_path, "-k", "finding_of_the_device_only")
    assert [f["code"] for t in found.values() for f in t["findings"]] == ["INP302"]


def test_settings_are_put_back() -> None:
    from pytest_inplace.parity.devices import Determined

    before = torch.backends.cudnn.deterministic, torch.backends.cuda.matmul.allow_tf32
    with Determined("cuda"):
        assert torch.backends.cudnn.deterministic
        assert not torch.backends.cuda.matmul.allow_tf32
    assert (torch.backends.cudnn.deterministic, torch.backends.cuda.matmul.allow_tf32) == before
