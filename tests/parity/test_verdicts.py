"""What is said of tests that the device runs otherwise, or not at all."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.support import read_json
from tests.standin import device
from tests.standin.process import run, run_tests

pytestmark = pytest.mark.skipif(device.unavailable() is not None, reason=str(device.unavailable()))

SOURCE = Path(__file__).with_name("verdicts.py")
LINES = SOURCE.read_text(encoding="utf-8").splitlines()
AGREE = [
    "puts_questions_to_the_check",
    "trains_a_module_of_its_file",
    "views_made_before_stay_views",
    "integers_and_shapes",
    "memory_is_shared_before_it_is_used",
    "one_place_twice",
    "one_place_twice_with_one_value",
    "scatter_twice",
    "copy_twice",
    "written_through_an_expanded_tensor",
    "workers[kept]",
    "workers[new]",
    "tensor_of_the_session",
    "tensor_of_the_session_again",
    "other_dtypes",
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("verdicts")


@pytest.fixture(scope="module")
def outcomes(folder: Path) -> dict[str, str]:
    return run_tests(SOURCE, folder, "--inplace-parity=standin", f"--inplace-json={folder / 'report.json'}")


@pytest.fixture(scope="module")
def records(folder: Path, outcomes: dict[str, str]) -> dict[str, dict[str, Any]]:
    return {t["nodeid"].partition("::test_")[2]: t for t in read_json(folder / "report.json")["tests"]}


def line_of(name: str, mark: str) -> int:
    begin = LINES.index(next(line for line in LINES if line.startswith(f"def test_{name}(")))
    return next(i + 1 for i in range(begin, len(LINES)) if LINES[i].endswith(f"# {mark}"))


def test_only_what_the_device_does_wrong_fails(outcomes: dict[str, str]) -> None:
    failed = {name for name, outcome in outcomes.items() if outcome == "failure"}
    assert failed == {"test_finding_of_the_device_only", "test_fails_on_the_cpu_too"}


def test_a_finding_of_the_device_only(records: dict[str, dict[str, Any]]) -> None:
    name = "finding_of_the_device_only"
    assert records[name]["parity"]["verdict"] == "differs"
    (finding,) = records[name]["findings"]
    assert finding["code"] == "INP302"
    assert finding["saved"]["line"] == line_of(name, "saved")
    assert finding["modified"]["line"] == line_of(name, "written")
    assert finding["divergence"]["device"] == "standin"


@pytest.mark.parametrize(
    ("name", "verdict", "reason"),
    [
        ("shared_memory_is_written", "not portable", "a NumPy array and a tensor share memory there"),
        ("not_deterministic", "not compared", "two runs on the CPU differ"),
        ("skipped_there", "not compared", "it is skipped there: no such kernel"),
        ("raises_there", "not portable", "it raised ValueError: odd"),
        ("out_of_memory_there", "not compared", "standin is out of memory"),
        ("fails_on_the_cpu_too", "not compared", "it fails on the CPU"),
        ("graph_of_the_session", "not portable", "a tensor of a graph that was built outside the run"),
        ("error_there[memory]", "not compared", "standin is out of memory"),
        ("error_there[dtype]", "not compared", "standin lacks a dtype: Cannot convert a MPS Tensor"),
        ("error_there[kernel]", "not compared", "standin has no operator aten::odd"),
        ("error_there[mps]", "not compared", "standin has no operator aten::odd"),
        ("error_there[assert]", "not compared", "standin reports STANDIN error: device-side assert"),
        ("error_there[exit]", "not portable", "it raised SystemExit: 3"),
        ("expected_to_fail_there", "not compared", "it is expected to fail there: no such kernel"),
        ("out_of_real_memory_there", "not compared", "standin is out of memory"),
    ],
)
def test_the_reason_is_said(name: str, verdict: str, reason: str, records: dict[str, dict[str, Any]]) -> None:
    parity = records[name]["parity"]
    assert parity["verdict"] == verdict
    assert parity["reason"].startswith(reason)
    if verdict == "not portable":
        assert f"verdicts.py:{line_of(name.partition('[')[0], 'not portable')})" in parity["reason"]


def test_state_that_is_left_behind_is_no_difference(records: dict[str, dict[str, Any]]) -> None:
    assert records["depends_on_what_it_left"]["parity"]["verdict"] == "not compared"


def test_what_is_not_asked_for_is_not_done(records: dict[str, dict[str, Any]]) -> None:
    assert records["not_asked_for"]["parity"] is None


@pytest.mark.parametrize("name", AGREE)
def test_these_agree(name: str, records: dict[str, dict[str, Any]]) -> None:
    parity = records[name]["parity"]
    assert parity["verdict"] == "agrees", parity


@pytest.mark.parametrize(
    ("name", "operator"),
    [
        ("one_place_twice", "index_put_"),
        ("scatter_twice", "scatter_"),
        ("copy_twice", "index_copy_"),
        ("written_through_an_expanded_tensor", "fill_"),
    ],
)
def test_a_hazard_is_told_with_its_line(name: str, operator: str, records: dict[str, dict[str, Any]]) -> None:
    (hazard,) = records[name]["parity"]["hazards"]
    assert hazard.startswith(f"{operator} writes ")
    assert hazard.endswith(f"verdicts.py:{line_of(name, f'hazard {operator}')})")


def test_no_hazard_where_all_is_defined(records: dict[str, dict[str, Any]]) -> None:
    assert records["one_place_twice_with_one_value"]["parity"]["hazards"] == []


def test_a_device_that_is_not_there(folder: Path) -> None:
    text = run(SOURCE, folder, "--inplace-parity=cuda", "-k", "integers or trains")
    assert "parity with cuda: 2 not compared" in text
    assert "not compared: there is no cuda device here" in text
    assert "2 passed" in text
