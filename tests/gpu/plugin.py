"""A pytest plugin for runs on CUDA: the marker for faults of the stand-in device does nothing there."""

from __future__ import annotations

import pytest


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fault(name): for the stand-in device only")
