"""A pytest plugin (``-p tests.standin.plugin``): the stand-in device, with the fault that a test asks for."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest

from tests.standin import device, faults

device.load()


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "fault(name): a kernel of the stand-in device is wrong in this test")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, Any, Any]:
    marker = item.get_closest_marker("fault")
    if marker is None:
        return (yield)
    with faults.injected(marker.args[0]):
        return (yield)
