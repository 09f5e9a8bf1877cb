"""``--inplace-replay-limit``: a second run that takes too long is broken off or not begun."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.conftest import Check

# The write comes first, then a loop of user code: slow only where each instruction of it is watched.
SLOW = """
import time, torch

TORN_DOWN = []

def test_slow():
    {before}
    w = torch.ones(3, requires_grad=True)
    h = w.exp()
    h.data.mul_(2)
    total = 0
    for i in range({count}):
        total = total + abs(i)
    h.sum().backward()

def test_after():
    assert True
"""


def test_a_second_run_is_broken_off(check: Check) -> None:
    source = SLOW.format(before="", count=3_000_000)
    run = check(source, "--inplace-replay-limit=1")
    run.outcomes(failed=1, passed=1)
    finding = run.finding("test_slow")
    assert finding["code"] == "INP102"
    assert finding["modified"]["line"] == 12  # seen before the time was over
    assert "the second run was broken off after 1 s by --inplace-replay-limit" in finding["note"]
    run.result.stdout.fnmatch_lines(["not checked: the second run was broken off after 1 s by *"])
    run.result.stdout.fnmatch_lines(["inplace: *replay-limit=1*"])


def test_the_tear_down_of_a_second_run_is_never_broken_off(check: Check) -> None:
    source = (
        "import pytest\nENDS = []\n@pytest.fixture(autouse=True)\ndef fix():\n    yield\n"
        "    for i in range(1_000_000):\n        abs(i)\n    ENDS.append(1)\n"
        + SLOW.format(before="", count=3_000_000).replace("assert True", "assert len(ENDS) == 2")
    )
    check(source, "--inplace-replay-limit=1").outcomes(failed=1, passed=1)


def test_no_second_run_of_a_test_that_took_longer(check: Check) -> None:
    run = check(SLOW.format(before="time.sleep(0.3)", count=1), "--inplace-replay-limit=0.2")
    run.outcomes(failed=1, passed=1)
    finding = run.finding("test_slow")
    assert finding["replayed"] is False
    assert finding["modified"] is None
    assert "s, more than --inplace-replay-limit=0.2" in finding["note"]
    run.result.stdout.fnmatch_lines(["not checked: a second run: over --inplace-replay-limit=0.2 (1x)"])


@pytest.mark.parametrize("where", ["command line", "ini file"])
def test_within_the_limit_nothing_changes(check: Check, pytester: pytest.Pytester, where: str) -> None:
    if where == "ini file":
        pytester.makeini("[pytest]\ninplace_replay_limit = 60\n")
    options = ["--inplace-replay-limit=60"] if where == "command line" else []
    run = check(SLOW.format(before="", count=1), *options)
    finding = run.finding("test_slow")
    assert finding["replayed"] is True
    assert finding["note"] is None
    run.result.stdout.fnmatch_lines(["inplace: *replay-limit=60*"])


@pytest.mark.parametrize("value", ["0", "-1", "soon", "inf", "nan"])
def test_a_wrong_limit_is_a_usage_error(pytester: pytest.Pytester, value: str) -> None:
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest_inprocess(f"--inplace-replay-limit={value}")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: --inplace-replay-limit: '{value}' is no number of seconds above 0"])


def test_a_wrong_limit_in_the_ini_file_names_it(pytester: pytest.Pytester) -> None:
    path: Path = pytester.makeini("[pytest]\ninplace_replay_limit = soon\n")
    pytester.makepyfile("def test_it(): pass")
    result = pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: inplace_replay_limit in {path}: 'soon' is no number *"])
