"""A word on the terminal while a long test runs a second time."""

from __future__ import annotations

import time
from typing import Any

import pytest

LONG = 2.0
"""Seconds. A shorter second run is over before anybody wonders."""


def say(item: pytest.Item, began: float) -> None:
    """With ``-v``, say that the test, which began at ``began``, runs again; workers have no terminal."""
    config = item.config
    took = time.monotonic() - began
    terminal: Any = config.pluginmanager.getplugin("terminalreporter")
    if (
        took < LONG
        or terminal is None
        or hasattr(config, "workerinput")
        or config.get_verbosity("inplace") < 1
    ):
        return
    capture: Any = config.pluginmanager.getplugin("capturemanager")
    if capture is None:
        _write(terminal, took)
    else:
        with capture.global_and_fixture_disabled():
            _write(terminal, took)


def _write(terminal: Any, took: float) -> None:
    terminal.write(f"(inplace: again, {took:.0f} s) ", flush=True)
