"""The stand-in device behaves as a device does, and each fault really makes it wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.standin import device
from tests.standin.process import run_tests

pytestmark = pytest.mark.skipif(device.unavailable() is not None, reason=str(device.unavailable()))
ROOT = Path(__file__).parents[2]


def test_it_behaves_as_a_device_does(tmp_path: Path) -> None:
    outcomes = run_tests(ROOT / "tests/standin/checks.py", tmp_path)
    assert len(outcomes) == 16
    assert set(outcomes.values()) == {"passed"}, outcomes
