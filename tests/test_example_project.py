"""The example project as its owner runs it: plainly, and under the check, against what is recorded."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

pytest.importorskip("sklearn")

EXAMPLE = Path(__file__).parent.parent / "example_project"
EXPECTED: list[dict[str, Any]] = json.loads((EXAMPLE / "expected_findings.json").read_text(encoding="utf-8"))
NODEIDS = [defect["nodeid"] for defect in EXPECTED]


def run(folder: str, junit: Path, *options: str) -> None:
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", folder]
    done = subprocess.run(
        [*command, f"--junitxml={junit}", *options],
        cwd=EXAMPLE, env={**environment, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr


def outcomes(junit: Path) -> dict[str, str]:
    """The outcome of each test by node id."""
    found = {}
    for case in ElementTree.parse(junit).iter("testcase"):
        path = case.attrib["classname"].replace(".", "/") + ".py"
        kinds = {child.attrib.get("type", "failed") for child in case if child.tag != "system-out"}
        found[f"{path}::{case.attrib['name']}"] = kinds.pop() if kinds else "passed"
    return found


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    junit = tmp_path_factory.mktemp("plain") / "junit.xml"
    run("tests_with_defects", junit, "-p", "no:inplace")
    return outcomes(junit)


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("checked")
    report = folder / "out.json"
    run("tests_with_defects", folder / "junit.xml", "--inplace-check", f"--inplace-json={report}")
    assert set(outcomes(folder / "junit.xml").values()) == {"failed"}
    tests = json.loads(report.read_text(encoding="utf-8"))["tests"]
    return {test["nodeid"]: test for test in tests}


def test_every_defect_is_recorded_and_no_other(
    plain: dict[str, str], checked: dict[str, dict[str, Any]]
) -> None:
    assert set(plain) == set(checked) == set(NODEIDS)
    silent = [defect for defect in EXPECTED if defect["silent"]]
    assert len(EXPECTED) >= 10
    assert len(silent) >= 6


@pytest.mark.parametrize("defect", EXPECTED, ids=NODEIDS)
def test_plain_pytest_says_what_is_recorded(defect: dict[str, Any], plain: dict[str, str]) -> None:
    assert plain[defect["nodeid"]] == defect["plain_outcome"]
    if defect["silent"]:
        assert defect["plain_outcome"] == "passed"


@pytest.mark.parametrize("defect", EXPECTED, ids=NODEIDS)
def test_the_finding_is_the_recorded_one(defect: dict[str, Any], checked: dict[str, dict[str, Any]]) -> None:
    (finding,) = checked[defect["nodeid"]]["findings"]
    assert {key: finding[key] for key in ("code", "rule", "state")} == {
        key: defect[key] for key in ("code", "rule", "state")
    }
    assert [finding[site] and finding[site]["line"] for site in ("saved", "modified")] == [
        defect["saved_line"],
        defect["modified_line"],
    ]
    if defect["relative_gradient_error"] is not None:
        # Recorded from two runs of the program, with the defect and without.
        assert finding["relative_error"] == pytest.approx(defect["relative_gradient_error"], rel=0.02)


def test_right_tests_are_clean_and_come_out_as_in_plain_pytest(tmp_path: Path) -> None:
    run("tests", tmp_path / "plain.xml", "-p", "no:inplace")
    run(
        "tests", tmp_path / "checked.xml", "--inplace-check", f"--inplace-json={tmp_path / 'out.json'}",
    )  # fmt: skip
    plain = outcomes(tmp_path / "plain.xml")
    assert outcomes(tmp_path / "checked.xml") == plain
    tests = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["tests"]
    assert "failed" not in plain.values()
    ran = [outcome for outcome in plain.values() if outcome != "pytest.skip"]
    assert [test["verdict"] for test in tests] == ["clean"] * len(ran)
