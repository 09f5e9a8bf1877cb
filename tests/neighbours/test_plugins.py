"""The real plugins of pytest: they do the same with the check as without, and defects are found."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from tests.integration.conftest import Check
from tests.integration.support import Run

RIGHT = """
import torch

def right(w):
    h = torch.zeros(4)
    h += 1
    h[1:3] = 2
    h = (w * h).exp()
    out = h.sum()
    values = h.detach().clone()
    values.mul_(3).clamp_(max=5)
    y = w + 1
    y.add_(1).mul_(2)
    y[0] = 7
    (out + y.sum()).backward()
    with torch.no_grad():
        w -= 0.1 * w.grad
    w.grad.zero_()
    return values

def wrong(w):
    h = w.exp()
    h.data.mul_(2)  # the write
    h.sum().backward()  # the use

def twice(w):  # looks suspicious and runs a second time; but relu's gradient asks for the sign only
    h = (w + 1).relu()
    h.data.mul_(2)
    h.sum().backward()

def leaf():
    return torch.zeros(4, requires_grad=True)
"""

Pair = Callable[..., tuple[pytest.RunResult, Run]]


@pytest.fixture
def pair(
    check: Check,
    plain: Callable[..., pytest.RunResult],
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
) -> Pair:
    """Run the tests with and without the check, and with no plugins but pytest's own and those named."""

    def run(source: str, *options: str, off: str = "randomly asyncio benchmark", **kwargs: Any) -> Any:
        monkeypatch.setenv("PYTEST_ADDOPTS", " ".join(f"-p no:{name}" for name in off.split()))
        pytester.makepyfile(code_under_test=RIGHT)
        pytester.syspathinsert()
        checked = check("from code_under_test import *\n" + source, *options, **kwargs)
        without = plain("test_it.py", *options)
        return without, checked

    return run


def outcomes(result: pytest.RunResult) -> dict[str, int]:
    found = result.parseoutcomes()
    return {key: n for key, n in found.items() if "warning" not in key}


def compare(pair: tuple[pytest.RunResult, Run], wrong: int = 1, rule: str = "INP102") -> Run:
    """All pass without; with the check all pass but the wrong ones, which are found at the right line."""
    without, checked = pair
    plainly = outcomes(without)
    assert set(plainly) == {"passed"}, without.stdout.str()
    assert outcomes(checked.result) == {"passed": plainly["passed"] - wrong, "failed": wrong}, checked.text
    assert "warning" not in str(checked.result.parseoutcomes()) or "warning" in str(without.parseoutcomes())
    for test in checked.document["tests"]:
        if "wrong" in test["nodeid"]:
            (finding,) = test["findings"]
            assert (finding["code"], finding["state"]) == (rule, "confirmed")
            assert "the write" in RIGHT.strip().splitlines()[finding["modified"]["line"] - 1]
            assert finding["modified"]["path"] == "code_under_test.py"
        else:
            assert test["verdict"] == "clean"
            assert test["reason"] is None
    return checked


def test_asyncio(pair: Pair) -> None:
    pytest.importorskip("pytest_asyncio")
    source = """
import asyncio
import pytest_asyncio
pytestmark = pytest.mark.asyncio
closed = []

@pytest_asyncio.fixture
async def served():
    loop = asyncio.get_running_loop()
    w = leaf()
    await asyncio.sleep(0)
    yield w
    assert asyncio.get_running_loop() is loop
    closed.append(1)

async def test_right(served):
    await asyncio.sleep(0.001)
    right(served)

async def test_twice(served):
    twice(served)
    await asyncio.gather(*[asyncio.to_thread(right, leaf()) for _ in range(2)])

async def test_wrong(served):
    async with asyncio.timeout(5) if hasattr(asyncio, "timeout") else asyncio.Lock():
        await asyncio.sleep(0)
        wrong(served)

async def test_closed(): assert len(closed) >= 2
"""
    compare(pair(source, off="randomly benchmark"))


def test_anyio(pair: Pair) -> None:
    pytest.importorskip("anyio")
    source = """
import anyio
pytestmark = pytest.mark.anyio

@pytest.fixture
def anyio_backend(): return "asyncio"

@pytest.fixture
async def served():
    await anyio.sleep(0)
    yield leaf()
    await anyio.sleep(0)

async def test_right(served): right(served)

async def test_twice(served):
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, 0)
        twice(served)

async def test_wrong(served):
    async with anyio.create_task_group() as group:
        group.start_soon(anyio.sleep, 0)
        await anyio.sleep(0)
        wrong(served)
"""
    compare(pair(source))


def test_isolated_asyncio_test_case(pair: Pair) -> None:
    source = """
import unittest

class TestIt(unittest.IsolatedAsyncioTestCase):
    def setUp(self): self.w = leaf()
    async def asyncSetUp(self): self.addAsyncCleanup(self.undo)
    async def undo(self): del self.w
    async def test_right(self): right(self.w)
    async def test_twice(self): twice(self.w)
    async def test_wrong(self): wrong(self.w)
"""
    compare(pair(source))


def test_doctest(pair: Pair) -> None:
    source = """
def clean():
    '''
    >>> right(leaf()).sum().item() > 0
    True
    >>> twice(leaf())
    '''

def is_wrong():
    '''
    >>> w = leaf()
    >>> wrong(w)
    >>> print(w.grad[0].item())
    2.0
    '''
"""
    compare(pair(source, "--doctest-modules"))


def test_mock(pair: Pair) -> None:
    pytest.importorskip("pytest_mock")
    source = """
import code_under_test

def patched(mocker):
    spied = mocker.spy(code_under_test, "leaf")
    stub = mocker.patch("os.getlogin", return_value="nobody")
    return spied, stub

def test_wrong(mocker):
    spied, stub = patched(mocker)
    wrong(code_under_test.leaf())
    assert spied.call_count == 1 and os.getlogin() == "nobody"

def test_twice(mocker):
    spied, stub = patched(mocker)
    twice(code_under_test.leaf())
    spied.assert_called_once()
    mocker.stopall()

def test_right(mocker):
    assert code_under_test.leaf is leaf and os.getlogin is real
    spied, stub = patched(mocker)
    right(code_under_test.leaf())
    assert os.getlogin() == "nobody"

def test_undone(): assert code_under_test.leaf is leaf and os.getlogin is real
"""
    compare(pair("import os\nreal = os.getlogin\n" + source))


def test_randomly_gives_the_same_order_and_the_same_numbers(pair: Pair) -> None:
    pytest.importorskip("pytest_randomly")
    source = """
import random
import numpy

@pytest.fixture
def n():
    return random.randrange(10**9), int(numpy.random.randint(10**9))

@pytest.fixture(autouse=True)
def told(request, n):
    yield
    print("drawn", request.node.name, n)

def drawn(name):
    print("drawn", name, random.randrange(10**9), numpy.random.rand())

@pytest.mark.parametrize("i", range(4))
def test_right(i, n): right(leaf()); drawn(i)
def test_twice(n): twice(leaf()); drawn("twice")
def test_wrong(n): wrong(leaf()); drawn("wrong")
"""
    without, checked = pair(source, "-s", "-v", "--randomly-seed=7", off="asyncio benchmark")
    compare((without, checked))
    for word in (r"^test_it\.py::\S+", r"drawn .*"):
        seen, expected = (re.findall(word, text, re.M) for text in (checked.text, without.stdout.str()))
        assert expected
        assert seen == expected


def numbers(pytester: pytest.Pytester) -> list[str]:
    return (pytester.path / "numbers").read_text().splitlines()


@pytest.mark.parametrize("how", ["randomly", "conftest"])
@pytest.mark.parametrize("kind", ["function", "method"])
def test_a_second_run_draws_what_the_first_one_drew(
    check: Check, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, how: str, kind: str
) -> None:
    """A plugin that seeds before set-up and before the call is not run again; its numbers are."""
    conftest = None
    if how == "randomly":
        pytest.importorskip("pytest_randomly")
    else:
        conftest = """
import random, torch
def pytest_runtest_setup(item): random.seed(1); torch.manual_seed(1)
def pytest_runtest_call(item): random.seed(2); torch.manual_seed(2)
"""
    monkeypatch.setenv(
        "PYTEST_ADDOPTS", "-p no:asyncio -p no:benchmark" + " -p no:randomly" * (how != "randomly")
    )
    body = """
import random, unittest
@pytest.fixture(autouse=True)
def n(): tell("fixture")
def tell(what):
    with open("numbers", "a") as file:
        print(what, random.randrange(10**9), torch.rand(1).item() if SEEDS_TORCH else 0, file=file)
def run():
    tell("test")
    w = torch.ones(random.randrange(2, 9), requires_grad=True)
    h = w.exp()
    h.data.mul_(2)
    h.sum().backward()
"""
    test = "def test_it(): run()"
    if kind == "method":
        test = "class TestIt(unittest.TestCase):\n    def setUp(self): tell('set up')\n"
        test += "    def test_it(self): run()"
    run = check(f"SEEDS_TORCH = {how == 'conftest'}\n{body}\n{test}\n", conftest=conftest)
    assert run.codes() == ["INP102"]
    lines = numbers(pytester)
    first = lines[: len(lines) // 2]
    assert len(first) == 2 + (kind == "method")
    assert lines == first * 2


def test_benchmark(pair: Pair, pytester: pytest.Pytester) -> None:
    pytest.importorskip("pytest_benchmark")
    source = """
def test_right(benchmark): benchmark(right, leaf())
def test_twice(benchmark): benchmark.pedantic(twice, args=(leaf(),), rounds=3)
def test_wrong(benchmark): benchmark.pedantic(wrong, args=(leaf(),), rounds=1)
"""
    options = ["--benchmark-json=bench.json", "--benchmark-max-time=0.02", "--benchmark-min-rounds=2"]
    without, checked = pair(source, *options, off="randomly asyncio")
    for text in (without.stdout.str(), checked.text):
        rows = re.findall(r"^(test_\w+) .* \(\d", text, re.M)
        assert sorted(rows) == ["test_right", "test_twice", "test_wrong"]
    written = json.loads((pytester.path / "bench.json").read_text())
    assert len(written["benchmarks"]) == 3
    compare((without, checked))


def test_hypothesis(pair: Pair) -> None:
    pytest.importorskip("hypothesis")
    source = """
from hypothesis import given, settings, strategies as st

@given(st.integers(1, 6))
def test_right(n): right(leaf())

@given(st.integers(1, 6))
@settings(max_examples=30)
def test_twice(n): twice(torch.zeros(n, requires_grad=True))

@given(st.integers(1, 6))
@settings(max_examples=30)
def test_wrong(n): wrong(torch.zeros(n, requires_grad=True))
"""
    compare(pair(source))


def test_hypothesis_shows_the_example_that_fails(pair: Pair) -> None:
    pytest.importorskip("hypothesis")
    source = """
from hypothesis import given, strategies as st

@given(st.integers(0, 100))
def test_it(number):
    right(leaf())
    assert number < 10
"""
    without, checked = pair(source, "-p", "no:cacheprovider")
    for text in (without.stdout.str(), checked.text):
        assert re.search(r"number=10,?\n", text), text
    assert checked.codes() == []


SLOW = """
import time

def test_slow_twice():  # its second run takes longer than it may
    time.sleep(0.6)
    twice(leaf())
    if not SEEN:
        SEEN.append(1)
    else:
        time.sleep(0.8)

def test_right(): right(leaf())
def test_wrong(): wrong(leaf())
SEEN = []
"""
HANGS = """
def test_hangs():
    twice(leaf())
    while True:
        time.sleep(0.05)

@pytest.fixture
def endless():
    yield
    time.sleep(60)

def test_hangs_in_the_end(endless): wrong(leaf())
"""


@pytest.mark.parametrize("scope", ["all", "function"])
def test_timeout_measures_the_first_run_only(pair: Pair, scope: str) -> None:
    pytest.importorskip("pytest_timeout")
    options = (
        ["--timeout=1"] + ["--timeout-method=signal"] + ["-o", "timeout_func_only=true"] * (scope != "all")
    )
    compare(pair(SLOW, *options))


def test_timeout_by_a_thread_does_not_end_the_run(pair: Pair) -> None:
    pytest.importorskip("pytest_timeout")
    compare(pair(SLOW, "--timeout=1", "--timeout-method=thread"))


def test_timeout_still_fires(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    # It gives up for the rest of a process once anyone has entered a debugger, as another test here does.
    monkeypatch.setattr(pytest.importorskip("pytest_timeout"), "SUPPRESS_TIMEOUT", False)
    without, checked = pair("import time\n" + HANGS, "--timeout=2", "--timeout-method=signal")
    assert outcomes(without) == {"passed": 1, "failed": 1, "errors": 1}
    assert len(re.findall(r"^E +Failed: Timeout \(>2.0s\) from pytest-timeout", checked.text, re.M)) == 2
    assert "its timeout has ended the test" in checked.finding("test_hangs")["note"]
    assert checked.codes("test_hangs_in_the_end") == ["INP102"]


COVERED = """
import pytest
from code_under_test import *

def branches(n):
    if n > 1:
        n -= 1
    else:
        n += 1
    while n < 3:
        n += 1
    return n

SEEN = []

@pytest.fixture
def w():
    yield leaf()
    SEEN.append("torn down")

def test_right(w):
    right(w)
    branches(1)

def test_twice(w):
    twice(w)
    first = not SEEN.count("twice")
    SEEN.append("twice")
    if first:
        branches(3)
    else:
        SEEN.append("in the second run only")

def test_wrong(w):
    wrong(w)
    branches(0)

def test_after(w):
    if w is None:
        SEEN.append("never")
    right(w)

"""


def test_coverage(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("pytest_cov")
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:randomly -p no:asyncio -p no:benchmark")
    pytester.makepyfile(code_under_test=RIGHT, test_it=COVERED)
    shown = []
    for options in (["-p", "no:inplace"], ["--inplace-check"]):
        options += ["--cov=.", "--cov-branch", "--cov-report=json:cov.json", "--cov-context=test"]
        result = pytester.runpytest_subprocess(*options)
        result.assert_outcomes(passed=3 + ("no:inplace" in options), failed=1 - ("no:inplace" in options))
        document = json.loads((pytester.path / "cov.json").read_text())
        shown.append({file: data for file, data in document["files"].items() if file.endswith(".py")})
    assert set(shown[0]) == {"code_under_test.py", "test_it.py"}
    for file in shown[0]:
        for key in ("executed_lines", "missing_lines", "executed_branches", "missing_branches"):
            assert shown[1][file][key] == shown[0][file][key], (file, key)
