"""Findings as SARIF: valid by the published schema, pointing where the write is, stable as lines move."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest

from pytest_inplace.reports import sarif
from pytest_inplace.reports.findings import (
    RULES,
    Change,
    Finding,
    GradientError,
    OtherTensor,
    Site,
    TensorInfo,
    ValueDiff,
    to_json,
)
from tests.reports.sarif_schema import multitool, problems

SAVED = Site("src/model.py", 41, "forward", "    h = x.exp()", 8, 15, "ExpBackward0", "Net.forward")
WRITTEN = Site("src/model.py", 52, "clip", "    h.data.clamp_(max=1)", 4, 24, qualname="Net.clip")
USED = Site("tests/test_a.py", 9, "test_a", "    loss.backward()")
H = TensorInfo("h", (8, 64), "float32")
FULL = Finding(
    "INP102", "confirmed", H, SAVED, WRITTEN, True, USED, 0, 0,
    ValueDiff(2, 512, 0.5, (Change((1, 2), "0.5", "1"),)),
    (GradientError("w", (3,), 0.1, 0.2, 0.9, ("1",), ("2",)),), True, 2, 0.25,
    also=(OtherTensor(H, SAVED),), fix="`y = x.clamp(...)`",
)  # fmt: skip


def record(nodeid: str, *findings: Finding, reason: str | None = None) -> dict[str, Any]:
    verdict = "finding" if findings else "unchecked" if reason else "clean"
    return {
        "nodeid": nodeid,
        "verdict": verdict,
        "reason": reason,
        "findings": [to_json(f) for f in findings],
    }


def made(*records: dict[str, Any], pages: dict[str, str] | None = None) -> dict[str, Any]:
    return sarif.document(records, "0.1.0", pages or {})


def results(*records: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = made(*records)["runs"][0]["results"]
    return found


def at(site: Site | None, **other: Any) -> Finding:
    return dataclasses.replace(FULL, modified=site, **other)


ODD = [
    record("tests/test_a.py::test_a", FULL, at(None), at(None, saved=None), at(None, saved=None, used=None)),
    record("tests/test_b.py::test_b", reason="RuntimeError: {0} [x](y)"),
    record("tests/test_b.py::test_c"),
    *(record(f"t.py::{r.code}", at(WRITTEN, code=r.code, state="latent")) for r in RULES),
    record("t.py::exec", at(Site("<string>", 3, "<module>"), saved=None, used=None)),
    record("t.py::zero", at(Site("a b#ü%.py", 0, "f", None, 3, None))),
    record("t.py::windows", at(Site("C:\\src\\m o.py", 4, "f"))),
    record("t.py::absolute", at(Site("/opt/x y.py", 4, "f", "\udce9 = 1"))),
    record("t.py::accepted", at(dataclasses.replace(WRITTEN, line=99), accepted="baseline")),
]  # fmt: skip


def test_everything_odd_is_valid_by_the_published_schema(pytestconfig: pytest.Config) -> None:
    assert problems(made(*ODD, pages={"INP102": "# INP102\n"}), pytestconfig) == []
    assert problems(made(), pytestconfig) == []


def test_the_validators_do_find_mistakes(pytestconfig: pytest.Config) -> None:
    broken = made(*ODD)
    broken["runs"][0]["results"][0]["level"] = "terrible"
    found = problems(broken, pytestconfig)
    assert {text.partition(":")[0] for text in found} == {"jsonschema", "jsonschema-rs"}


@pytest.mark.skipif(not os.environ.get("PYTEST_INPLACE_EXHAUSTIVE"), reason="a download of 43 MB")
def test_the_multitool_has_nothing_against_it(tmp_path: Path, pytestconfig: pytest.Config) -> None:
    path = tmp_path / "out.sarif"
    path.write_text(json.dumps(made(*ODD)), encoding="utf-8")
    assert [r for r in multitool(path, pytestconfig) if r.get("level", "warning") == "error"] == []
    broken = path.read_text("utf-8").replace('"endColumn": 25', '"endColumn": 2')
    path.write_text(broken, encoding="utf-8")
    assert [r for r in multitool(path, pytestconfig) if r.get("level", "warning") == "error"]


def test_a_result() -> None:
    (result,) = results(record("tests/test_a.py::test_a", FULL))
    assert (result["ruleId"], result["level"], result["kind"]) == ("INP102", "error", "fail")
    assert RULES[result["ruleIndex"]].code == "INP102"
    (location,) = result["locations"]
    assert location["physicalLocation"] == {
        "artifactLocation": {"uri": "src/model.py", "uriBaseId": "SRCROOT"},
        "region": {
            "startLine": 52, "endLine": 52, "startColumn": 5, "endColumn": 25,
            "snippet": {"text": WRITTEN.source},
        },
    }  # fmt: skip
    assert location["logicalLocations"][0]["fullyQualifiedName"] == "Net.clip"
    related = {r["id"]: r["physicalLocation"]["region"]["startLine"] for r in result["relatedLocations"]}
    assert related == {1: 41, 3: 9}
    text = result["message"]["text"]
    assert text.startswith("INP102 saved-tensor-modified-silently: h f32[8, 64] was overwritten")
    assert "[saved for ExpBackward0, in forward](1)" in text
    (flow,) = result["codeFlows"][0]["threadFlows"]
    assert [step["location"]["message"]["text"] for step in flow["locations"]] == [
        "saved for ExpBackward0, in forward", "overwritten, in clip", "used by backward, in test_a",
    ]  # fmt: skip
    assert result["properties"]["tests"] == ["tests/test_a.py::test_a"]
    assert "suppressions" not in result


def test_one_line_in_many_tests_is_one_result() -> None:
    (result,) = results(*(record(f"t.py::{i:03}", FULL) for i in range(200)))
    assert (result["occurrenceCount"], result["properties"]["testCount"]) == (200, 200)
    assert len(result["properties"]["tests"]) == 100


def test_fingerprints_survive_moved_lines_and_tell_copies_apart() -> None:
    def prints(*lines: int) -> list[str]:
        records = [record(f"t.py::{n}", at(dataclasses.replace(WRITTEN, line=n))) for n in lines]
        return [
            r["partialFingerprints"]["pytestInplace/v1"]
            for r in sorted(
                results(*records), key=lambda r: r["locations"][0]["physicalLocation"]["region"]["startLine"]
            )
        ]

    assert prints(52) == prints(520)
    assert len(set(prints(52, 60))) == 2
    assert prints(52, 60) == prints(53, 61)
    other = at(dataclasses.replace(WRITTEN, source="h.data.clamp_(max=2)"))
    assert results(record("t", other))[0]["partialFingerprints"]["pytestInplace/v1"] != prints(52)[0]


def test_accepted_findings_are_suppressed_and_others_say_that_they_are_not() -> None:
    accepted = at(dataclasses.replace(WRITTEN, line=99), accepted="baseline")
    found = {
        r["locations"][0]["physicalLocation"]["region"]["startLine"]: r["suppressions"]
        for r in results(record("t.py::a", FULL, accepted))
    }
    assert found[52] == []
    assert [s["status"] for s in found[99]] == ["accepted"]


def test_no_text_of_ours_is_taken_for_a_link_or_a_placeholder() -> None:
    (result,) = results(record("t.py::a", at(None, saved=None, used=None, note="see [1](2) and {0}")))
    assert r"see [1\](2) and {{0}}" in result["message"]["text"]


def test_every_rule_has_help_and_its_page() -> None:
    driver = made(pages={rule.code: f"# {rule.code}" for rule in RULES})["runs"][0]["tool"]["driver"]
    assert [r["id"] for r in driver["rules"]] == [rule.code for rule in RULES]
    for each in driver["rules"]:
        assert each["help"]["markdown"] == f"# {each['id']}"
        assert each["id"] in each["help"]["text"]
        assert each["fullDescription"]["text"].endswith(".")


def test_unchecked_tests_are_notifications() -> None:
    (note,) = made(*ODD)["runs"][0]["invocations"][0]["toolExecutionNotifications"]
    assert note["message"]["text"].startswith("tests/test_b.py::test_b was not checked: RuntimeError")
