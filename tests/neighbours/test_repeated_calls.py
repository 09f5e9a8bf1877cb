"""A test whose second run calls a function more or less often, as pytest-benchmark makes it, is judged."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from pytest_inplace.engine.alike import TAKEN_FOR_HARMLESS
from pytest_inplace.engine.replay import NOT_REPRODUCED
from tests.integration.conftest import Check

CODE = """
import torch.nn.functional as F

def harmless():  # relu's gradient asks for the sign only
    w = torch.ones(3, requires_grad=True)
    h = w.relu()  # the save
    h.data.mul_(2)  # the write
    h.sum().backward()

def harmless_in_a_library():
    w = torch.ones(3, requires_grad=True)
    h = F.relu(w)
    h.data.mul_(2)
    h.sum().backward()

def harmful():
    w = torch.ones(3, requires_grad=True)
    h = w.exp()  # the harmful save
    h.data.mul_(2)  # the harmful write
    h.sum().backward()

def unused():
    w = torch.ones(3, requires_grad=True)
    h = w.exp()
    h.mul_(2)  # the unused write

RUNS = []
def times(first, second):
    RUNS.append(1)
    return range(first if len(RUNS) == 1 else second)
"""


@pytest.fixture
def checked(check: Check, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:randomly -p no:asyncio")
    return lambda body, *options: check(CODE + body, *options)


FAST = ["--benchmark-max-time=0.1", "--benchmark-min-time=0.0005", "--benchmark-calibration-precision=2"]


@pytest.mark.parametrize("name", ["harmless", "harmless_in_a_library"])
def test_what_does_no_harm_is_green_when_calibrated(checked: Callable[..., Any], name: str) -> None:
    pytest.importorskip("pytest_benchmark")
    run = checked(f"def test_it(benchmark): benchmark({name})", *FAST)
    assert run.codes() == []
    run.result.assert_outcomes(passed=1)


@pytest.mark.parametrize(
    ("name", "code", "write"),
    [("harmful", "INP102", "the harmful write"), ("unused", "INP101", "the unused write")],
)
def test_what_does_harm_is_told_with_its_lines_when_calibrated(
    checked: Callable[..., Any], pytester: pytest.Pytester, name: str, code: str, write: str
) -> None:
    pytest.importorskip("pytest_benchmark")
    run = checked(f"def test_it(benchmark): benchmark({name})", *FAST)
    assert run.codes() == [code]
    finding = run.finding("test_it")
    source = (pytester.path / "test_it.py").read_text().splitlines()
    assert write in source[finding["modified"]["line"] - 1]
    assert finding["replayed"]
    assert "not show it again" not in (finding["note"] or "")


@pytest.mark.parametrize("counts", [(5, 3), (3, 5), (300, 250), (250, 300)])
def test_other_numbers_of_calls(checked: Callable[..., Any], counts: tuple[int, int]) -> None:
    run = checked(f"def test_right():\n    for _ in times{counts}: harmless()\n")
    assert run.codes() == []
    run.result.assert_outcomes(passed=1)


def test_what_was_not_tried_itself_is_counted(checked: Callable[..., Any]) -> None:
    run = checked("def test_it():\n    for _ in times(5, 3): harmless()\n")
    assert run.codes() == []
    assert TAKEN_FOR_HARMLESS in run.text


@pytest.mark.parametrize(("name", "code"), [("harmful", "INP102"), ("unused", "INP101")])
def test_harm_is_told_once(checked: Callable[..., Any], name: str, code: str) -> None:
    run = checked(f"def test_it():\n    for _ in times(5, 3): {name}()\n")
    assert run.codes() == [code]
    finding = run.finding("test_it")
    assert finding["modified"] is not None
    assert bool(finding["gradients"]) is (name == "harmful")
    assert TAKEN_FOR_HARMLESS not in run.text


def test_one_that_did_harm_speaks_for_the_rest(checked: Callable[..., Any]) -> None:
    """The same line did no harm in one call and did in another: what is missing may have been either."""
    run = checked("""
def call(harm):
    w = torch.ones(3, requires_grad=True)
    h = w.exp()
    h.data.mul_(2)
    (h * harm).sum().backward()

def test_it():
    for i in times(6, 3): call(float(i == 0))
""")
    assert run.codes() == ["INP102"]


@pytest.mark.parametrize("other", ["torch.ones(4)", "torch.ones(3, dtype=torch.double)"])
def test_another_shape_or_type_does_not_speak_for_it(checked: Callable[..., Any], other: str) -> None:
    run = checked(f"""
def call(w):
    w.requires_grad_()
    h = w.relu()
    h.data.mul_(2)
    h.sum().backward()

def test_it():
    count = times(2, 1)
    for i in count: call(torch.ones(3) if i == 0 else {other})
""")
    assert run.codes() == ["INP102"]
    assert run.finding("test_it")["note"] == NOT_REPRODUCED
