"""Tests in many styles run on the device as they are, and agree."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.support import read_json
from tests.standin import device
from tests.standin.process import run_tests

pytestmark = pytest.mark.skipif(device.unavailable() is not None, reason=str(device.unavailable()))


def test_all_styles_run_and_agree(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    source = Path(__file__).with_name("user_style.py")
    outcomes = run_tests(source, tmp_path, "--inplace-parity=standin", f"--inplace-json={report}")
    assert len(outcomes) >= 30
    assert set(outcomes.values()) == {"passed"}
    parity = {t["nodeid"].rpartition("::")[2]: t["parity"] for t in read_json(report)["tests"]}
    assert {name: p["reason"] for name, p in parity.items() if p["verdict"] != "agrees"} == {}
    # What agrees bit for bit costs one more run.
    assert sum(p["runs"] == 1 for p in parity.values()) > len(parity) / 2
    assert sum(p["points"] for p in parity.values()) > 250
