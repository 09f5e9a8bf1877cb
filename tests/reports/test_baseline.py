"""The baseline as data: keys, the file, what a run makes of it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from pytest_inplace.reports import baseline
from pytest_inplace.reports.baseline import Baseline, BaselineError, Key, key_of, loads
from pytest_inplace.reports.findings import Finding, Site, TensorInfo, to_json

WRITE = Site("model.py", 52, "clip", "    h.data.clamp_(max=1)  # hot", qualname="Net.clip")
FINDING = Finding("INP102", "confirmed", TensorInfo("h", (2,), "float32"), modified=WRITE)
KEY = Key("model.py", "Net.clip", "h.data.clamp_(max=1) # hot", "INP102")


def record(nodeid: str, *findings: Finding, verdict: str | None = None) -> dict[str, Any]:
    verdict = verdict or ("finding" if findings else "clean")
    return {"nodeid": nodeid, "verdict": verdict, "findings": [to_json(f) for f in findings]}


def accepted(finding: Finding = FINDING) -> Finding:
    return dataclasses.replace(finding, accepted="baseline")


def of(*tests: str, state: str = "confirmed") -> Baseline:
    made = Baseline()
    made.add(KEY, tests, state)
    return made


@pytest.mark.parametrize(
    ("change", "same"),
    [
        ({"line": 900}, True),
        ({"source": "\t  h.data.clamp_(max=1)  # hot   "}, True),
        ({"column": 4, "end_column": 9}, True),
        ({"path": "models\\..\\model.py"}, False),
        ({"source": "h.data.clamp_(max=2)"}, False),
        ({"qualname": "Other.clip"}, False),
        ({"source": None}, False),
    ],
)
def test_what_a_key_depends_on(change: dict[str, Any], same: bool) -> None:
    moved = dataclasses.replace(FINDING, modified=dataclasses.replace(WRITE, **change))
    assert (key_of(moved) == key_of(FINDING)) is same
    assert of("t").accepts(moved) is same


def test_the_state_and_the_test_do_not_matter_but_the_rule_does() -> None:
    assert of("t").accepts(dataclasses.replace(FINDING, state="latent"))
    assert not of("t").accepts(dataclasses.replace(FINDING, code="INP101"))


def test_backslashes_are_slashes() -> None:
    site = dataclasses.replace(WRITE, path="src\\model.py")
    assert key_of(dataclasses.replace(FINDING, modified=site)).path == "src/model.py"


def test_without_a_writing_line_the_saving_line_counts() -> None:
    saved = dataclasses.replace(WRITE, function="forward", qualname=None)
    finding = dataclasses.replace(FINDING, modified=None, saved=saved)
    assert key_of(finding).function == "forward"
    assert key_of(dataclasses.replace(FINDING, modified=None)) == Key("", "", "", "INP102")


def test_the_file_is_sorted_whatever_the_order_and_comes_back() -> None:
    keys = [Key(path, "f", source, rule) for path in "ba" for source in "ys" for rule in ("INP103", "INP102")]
    one, two = Baseline(), Baseline()
    for key in keys:
        one.add(key, ["t::b", "t::a"], "latent")
    for key in reversed(keys):
        two.add(key, ["t::a"], "latent")
        two.add(key, ["t::b"], "latent")
    assert one.dumps() == two.dumps()
    assert loads(one.dumps()) == one
    listed = json.loads(one.dumps())["findings"]
    assert listed == sorted(listed, key=lambda e: (e["path"], e["function"], e["source"], e["rule"]))
    assert listed[0]["tests"] == ["t::a", "t::b"]


def test_one_more_entry_adds_lines_and_changes_none() -> None:
    before = of("t::a")
    after = of("t::a")
    after.add(Key("a.py", "f", "x += 1", "INP101"), ["t::a"], "latent")
    old, new = before.dumps().splitlines(), after.dumps().splitlines()
    assert len(new) == len(old) + 10
    rest = iter(new)
    assert all(line in rest for line in old)


def test_text_in_any_script_comes_back() -> None:
    made = Baseline()
    made.add(Key("größe.py", "Größe.f", "x['é\udc80'] += 1", "INP101"), ["t.py::test[ü]"], "latent")
    assert "größe" in made.dumps()
    assert loads(made.dumps().encode("utf-8", "backslashreplace").decode()) == made


def test_doubled_entries_are_one() -> None:
    document = json.loads(of("t::a", state="latent").dumps())
    document["findings"] += json.loads(of("t::b").dumps())["findings"]
    assert loads(json.dumps(document)) == of("t::a", "t::b")


ENTRY = {"path": "a.py", "function": "f", "source": "x", "rule": "INP101", "state": "latent", "tests": []}


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "not JSON: Expecting value: line 1"),
        ("<<<<<<< ours\n{}\n", "not JSON: Expecting value: line 1"),
        ('{"findings": [], "forma', "not JSON: "),
        ("[]", 'not a baseline: there is no "format"'),
        ('{"schema": 1, "tests": []}', 'not a baseline: there is no "format"'),
        ("[" * 100_000, "nested too deeply"),
        ({"version": 2}, "version 2, where this release reads 1"),
        ({"findings": {}}, '"findings" is not a list'),
        ({"findings": [3]}, "finding 1: not an object"),
        ({"findings": [ENTRY, {**ENTRY, "path": 3}]}, 'finding 2: "path" is not a text'),
        ({"findings": [{**ENTRY, "source": None}]}, 'finding 1: "source" is not a text'),
        ({"findings": [{**ENTRY, "tests": "a"}]}, 'finding 1: "tests" is not a list of texts'),
        ({"findings": [{**ENTRY, "state": "fixed"}]}, "finding 1: \"state\" is 'fixed'"),
        ({"findings": [{**ENTRY, "rule": "INP999"}]}, "finding 1: unknown rule 'INP999'"),
    ],
)
def test_what_is_no_baseline(text: str | dict[str, Any], why: str) -> None:
    if isinstance(text, dict):
        text = json.dumps({"format": baseline.FORMAT, "version": 1, "findings": [], **text})
    with pytest.raises(BaselineError) as caught:
        loads(text)
    assert why in str(caught.value)


@pytest.mark.parametrize(
    ("records", "stale"),
    [
        ([record("t::a"), record("t::b")], True),
        ([record("t::a", FINDING), record("t::b")], False),
        ([record("t::a"), record("t::b"), record("t::new", accepted())], False),
        ([record("t::a")], False),
        ([record("t::a"), record("t::b", verdict="unchecked")], False),
        ([], False),
    ],
)
def test_stale_is_what_all_its_tests_no_longer_show(records: list[dict[str, Any]], stale: bool) -> None:
    assert of("t::a", "t::b").stale(records) == ([KEY] if stale else [])


def test_a_test_that_is_gone_keeps_nothing_alive() -> None:
    assert of("t::a", "t::b").stale([record("t::a")], gone=lambda nodeid: nodeid == "t::b") == [KEY]


def test_latent_entries_are_left_alone_where_nobody_looks() -> None:
    assert of("t::a", state="latent").stale([record("t::a")], latent=False) == []
    assert of("t::a", state="confirmed").stale([record("t::a")], latent=False) == [KEY]


def test_entries_about_devices_are_left_alone_where_none_were_compared() -> None:
    made = Baseline()
    made.add(Key("model.py", "f", "x", "INP301"), ["t::a"], "confirmed")
    assert made.stale([record("t::a")], parity=False) == []
    assert len(made.stale([record("t::a")])) == 1


def test_update_keeps_what_did_not_run_and_drops_what_is_gone() -> None:
    other = Key("a.py", "f", "x += 1", "INP101")
    known = of("t::a", "t::b", "t::c")
    known.add(other, ["t::d"], "latent")
    records = [record("t::a"), record("t::b", accepted()), record("t::d")]
    updated = known.updated(records, known.stale(records))
    assert updated == of("t::b", "t::c")


def test_update_takes_up_only_what_was_accepted() -> None:
    assert Baseline().updated([record("t::a", FINDING)], []) == Baseline()
    assert Baseline().updated([record("t::a", accepted())], []) == of("t::a")
