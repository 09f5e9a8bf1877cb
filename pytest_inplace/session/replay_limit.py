"""How long the second run of a test may take: from the command line or the ini file."""

from __future__ import annotations

import math

import pytest

KEY = "inplace_replay_limit"
HANGS = 60.0, 30.0
"""Seconds, and times what the first run took, beyond which a second run without a limit is broken off."""


def add(parser: pytest.Parser, group: pytest.OptionGroup) -> None:
    """Declare the option and its ini key."""
    group.addoption(
        "--inplace-replay-limit",
        metavar="SECONDS",
        default=None,
        help="break a second run off after so many seconds, and begin none where the first run took longer; "
        "default: 60, or 30 times the first run if that is more (ini: inplace_replay_limit)",
    )
    parser.addini(KEY, "seconds for a second run (see --inplace-replay-limit)", default=None)


def resolve(config: pytest.Config, ini_source: str) -> float | None:
    """The limit for each test, or ``None`` for one that follows from its first run.

    Raises:
        pytest.UsageError: for what is no positive number of seconds.
    """
    option, ini = config.getoption(KEY), config.getini(KEY)
    text = option if option is not None else ini
    if text is None or (option is None and text == ""):
        return None
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not (seconds > 0 and math.isfinite(seconds)):
        source = "--inplace-replay-limit" if option is not None else ini_source
        raise pytest.UsageError(f"{source}: {text!r} is no number of seconds above 0")
    return seconds


def skipped(first_run: float, limit: float | None) -> str | None:
    """Why there is no second run of a test whose first run took so many seconds, if there is none."""
    if limit is None or first_run <= limit:
        return None
    return f"not replayed: the test took {first_run:.1f} s, more than --inplace-replay-limit={limit:g}"


def seconds(first_run: float, limit: float | None) -> float:
    """After how long the second run of a test is broken off whose first run took so many seconds."""
    least, times = HANGS
    return limit if limit is not None else max(least, times * first_run)


def cut(first_run: float, limit: float | None) -> str:
    """What a report says where the second run was broken off."""
    text = f"the second run was broken off after {seconds(first_run, limit):.3g} s"
    if limit is not None:
        return f"{text} by --inplace-replay-limit"
    return f"{text}: the first took {first_run:.1f} s (see --inplace-replay-limit)"
