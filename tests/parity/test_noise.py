"""A device that only rounds otherwise gives no finding, whatever the model, the seed and the precision."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.support import read_json
from tests.standin import device
from tests.standin.process import run_tests

pytestmark = pytest.mark.skipif(device.unavailable() is not None, reason=str(device.unavailable()))


def test_rounding_is_no_finding(tmp_path: Path) -> None:
    report = tmp_path / "report.json"
    source = Path(__file__).with_name("noisy.py")
    outcomes = run_tests(source, tmp_path, "--inplace-parity=standin", f"--inplace-json={report}")
    assert len(outcomes) >= 40
    assert {name for name, outcome in outcomes.items() if outcome != "passed"} == set()
    records = read_json(report)["tests"]
    assert {t["nodeid"]: t["parity"]["reason"] for t in records if t["parity"]["verdict"] != "agrees"} == {}
    # The device did round otherwise, and double precision was asked.
    judged = [t for t in records if t["parity"]["bound"] is not None]
    assert len(judged) > len(records) / 2
