"""Other tools' reports: SARIF, junit files, GitHub annotations, pytest-html; with and without workers."""

from __future__ import annotations

import html
import json
import re
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import pytest

from tests.integration.support import CLEAN, HEAD, SILENT, VERSION, function
from tests.integration.test_html_page import data
from tests.reports.sarif_schema import problems

if TYPE_CHECKING:
    from tests.integration.conftest import Check

TESTS = HEAD + "".join(
    function(f"test_{name}", body)
    for name, body in [("clean", CLEAN), ("silent", SILENT), ("version", VERSION), ("again", SILENT)]
)
WRITES = [i for i, line in enumerate(TESTS.splitlines(), 1) if "# the write" in line]


@pytest.mark.parametrize("workers", [False, True], ids=["alone", "workers"])
def test_all_at_once(
    pytester: pytest.Pytester,
    monkeypatch: pytest.MonkeyPatch,
    pytestconfig: pytest.Config,
    workers: bool,
) -> None:
    for name in ("xdist", "pytest_github_actions_annotate_failures", "pytest_html"):
        pytest.importorskip(name)
    pytester.makepyfile(test_it=TESTS)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_WORKSPACE", str(pytester.path))
    options = ["--inplace-check", "--inplace-sarif=out/o.sarif", "--junitxml=junit.xml"]
    options += ["--html=out/page.html", "--self-contained-html", "--inplace-html=our own.html"]
    result = pytester.runpytest_subprocess(*options, *(["-n2"] if workers else []))
    result.assert_outcomes(passed=1, failed=3)
    sarif_is_right(json.loads((pytester.path / "out/o.sarif").read_text("utf-8")), pytestconfig)
    junit_is_right(ElementTree.parse(pytester.path / "junit.xml"))
    annotations_are_right([line for line in result.stderr.lines if line.startswith("::error ")])
    our_page_is_right(data(pytester.path / "our own.html"))
    page_is_right((pytester.path / "out/page.html").read_text("utf-8"))


def sarif_is_right(document: dict[str, Any], config: pytest.Config) -> None:
    assert problems(document, config) == []
    found = [
        (r["ruleId"], r["locations"][0]["physicalLocation"]["region"]["startLine"], r["occurrenceCount"])
        for r in document["runs"][0]["results"]
    ]
    assert sorted(found) == [("INP101", WRITES[1], 1), ("INP102", WRITES[0], 1), ("INP102", WRITES[2], 1)]


def junit_is_right(tree: Any) -> None:
    cases = {
        case.attrib["name"]: [(p.attrib["name"], p.attrib["value"]) for p in case.iter("property")]
        for case in tree.iter("testcase")
    }
    assert cases["test_clean"] == []
    silent: dict[str, Any] = dict(cases["test_silent"])
    assert silent.pop("inplace").startswith("INP102 saved-tensor-modified-silently: h f32[3]")
    assert silent == {
        "inplace_rule": "INP102",
        "inplace_state": "confirmed",
        "inplace_saved": f"test_it.py:{WRITES[0] - 1}",
        "inplace_modified": f"test_it.py:{WRITES[0]}",
        "inplace_used": f"test_it.py:{WRITES[0] + 1}",
        "inplace_relative_error": "1",
    }
    assert dict(cases["test_version"])["inplace_rule"] == "INP101"


def annotations_are_right(annotations: list[str]) -> None:
    assert len(annotations) == 3
    (silent,) = (each for each in annotations if "test_silent" in each)
    assert silent.startswith("::error file=test_it.py,line=")
    assert "INP102 saved-tensor-modified-silently: h f32[3] was overwritten" in silent
    assert f"overwritten: test_it.py:{WRITES[0]}" in silent


def our_page_is_right(found: dict[str, Any]) -> None:
    assert [test[:2] for test in found["tests"]] == [
        ["test_it.py::test_again", "finding"],
        ["test_it.py::test_clean", "clean"],
        ["test_it.py::test_silent", "finding"],
        ["test_it.py::test_version", "finding"],
    ]
    assert [f["values"]["heat"]["cells"] for f in found["findings"]] == [["999"]] * 3
    assert [sum(f["gradients"][0]["histogram"]["computed"]) for f in found["findings"]] == [3] * 3
    assert all(len(step["lines"]) > 1 for f in found["findings"] for step in f["steps"])


def page_is_right(page: str) -> None:
    blob = re.search(r'data-jsonblob="(.*?)"', page, re.S)
    assert blob
    extras = {
        nodeid.rpartition("::")[2]: [e["content"] for each in runs for e in each["extras"]]
        for nodeid, runs in json.loads(html.unescape(blob[1]))["tests"].items()
    }
    assert extras["test_clean"] == []
    (content,) = extras["test_silent"]
    assert "INP102 saved-tensor-modified-silently" in content
    assert "<code>h.data.mul_(2)  # the write</code>" in content
    assert '<a href="../our%20own.html">' in content
    assert len(extras["test_version"]) == 1


def test_without_a_junit_file_nothing_is_added(check: Check) -> None:
    conftest = "def pytest_runtest_logreport(report):\n    print('properties', report.user_properties)\n"
    run = check(function("test_it", SILENT), "-s", conftest=conftest)
    assert set(re.findall(r"properties (.*)", run.text)) == {"[]"}


def test_a_sarif_path_that_cannot_be_written_is_a_usage_error(check: Check) -> None:
    run = check(function("test_it", SILENT), "--inplace-sarif=test_it.py/o.sarif")
    assert run.result.ret == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: --inplace-sarif: cannot write " in run.result.stderr.str()
