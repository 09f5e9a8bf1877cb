"""``--inplace-replay-limit``: a second run that takes too long is broken off or not begun."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_inplace.engine import deadline
from pytest_inplace.session import replay_limit
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


# The second run finds nothing left of what the first took, and waits for it.
HANGS = """
import queue, threading, time, torch
READY = queue.Queue()
READY.put(1)
LOCK = threading.Lock()
RUNS = []

def test_it():
    RUNS.append(1)
    w = torch.ones(3, requires_grad=True)
    h = w.exp()
    h.data.mul_(2)
    h.sum().backward()
    {wait}

def test_after():
    import signal
    assert len(RUNS) == 2 and signal.getsignal(signal.SIGALRM) is signal.SIG_DFL
    assert signal.getitimer(signal.ITIMER_REAL) == (0, 0)
"""


@pytest.mark.parametrize("wait", ["READY.get()", "LOCK.acquire()", "len(RUNS) < 2 or time.sleep(9999)"])
def test_a_second_run_that_waits_for_ever_is_broken_off(check: Check, wait: str) -> None:
    run = check(HANGS.format(wait=wait), "--inplace-replay-limit=1")
    run.outcomes(failed=1, passed=1)
    finding = run.finding("test_it")
    assert finding["code"] == "INP102"
    assert finding["modified"]["line"] == 14
    assert finding["gradients"]
    run.result.stdout.fnmatch_lines(["not checked: the second run was broken off after 1 s by *"])


def test_without_a_limit_a_second_run_is_broken_off_that_takes_far_longer(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replay_limit, "HANGS", (0.5, 2.0))
    run = check(HANGS.format(wait="READY.get()"))
    run.outcomes(failed=1, passed=1)
    run.result.stdout.fnmatch_lines(
        ["not checked: the second run was broken off after * s: the first took *"]
    )


def test_the_limit_grows_with_the_first_run() -> None:
    assert replay_limit.seconds(0.1, None) == 60
    assert replay_limit.seconds(10, None) == 300
    assert replay_limit.seconds(10, 5) == 5


ALARM = """
import signal, time, torch
RANG = []

def test_it():
    signal.signal(signal.SIGALRM, lambda *_: RANG.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.1)
    w = torch.ones(3, requires_grad=True)
    h = w.exp()
    h.data.mul_(2)
    h.sum().backward()
    time.sleep(0.3)

def test_after():
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    assert len(RANG) == 2
"""


def test_an_alarm_of_the_user_is_left_alone(check: Check) -> None:
    check(ALARM, "--inplace-replay-limit=5").outcomes(failed=1, passed=1)


SUBTESTS = """
import time, torch, unittest
RUNS = []

class TestIt(unittest.TestCase):
    def test_it(self):
        RUNS.append(1)
        w = torch.ones(3, requires_grad=True)
        h = w.exp()
        h.data.mul_(2)
        h.sum().backward()
        for i in range(100):
            with self.subTest(i=i):
                time.sleep(0.01 if len(RUNS) == 1 else 60)
"""


def test_subtests_that_catch_it_are_broken_off_one_by_one(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deadline, "AGAIN", 0.02)
    run = check(SUBTESTS, "--inplace-replay-limit=1.5")
    run.result.stdout.fnmatch_lines(["not checked: the second run was broken off after 1.5 s by *"])
    assert run.codes("TestIt::test_it") == ["INP102"]
