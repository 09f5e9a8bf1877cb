"""The page as text and data: complete, small, and nothing of the user's can be taken for a part of it."""

from __future__ import annotations

import json
import re
import time
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from pytest_inplace.reports.findings import Site
from pytest_inplace.reports.page import build
from tests.reports import made_up


class Elements(HTMLParser):
    """What a parser makes of the page: its elements, and the text of each script."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[str] = []
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [f"{name}={value}" for name, value in attrs]
        if tag == "script":
            self.scripts.append("")

    def handle_data(self, text: str) -> None:
        if self.lasttag == "script":
            self.scripts[-1] += text


def page(*records: dict[str, Any], root: str = "/nowhere") -> str:
    return build.page(records, {"torch": "2.13.0"}, root)


def test_hostile_text_stays_data(tmp_path: Path) -> None:
    made_up.source(tmp_path)
    hostile = made_up.HOSTILE
    write = Site("model.py", 5, hostile, made_up.SOURCE.splitlines()[4], qualname=hostile)
    tensor = made_up.finding(0).tensor.__class__(hostile, (2,), hostile)
    finding = made_up.finding(1, modified=write, fix=hostile, note=hostile, raised=hostile, tensor=tensor)
    records = [made_up.record(f"t.py::test[{hostile}]", finding), made_up.record("u", reason=hostile)]
    plain, full = Elements(page()), Elements(page(*records, root=str(tmp_path)))
    assert full.tags == plain.tags
    assert full.attributes == plain.attributes
    data = json.loads(full.scripts[0])
    assert data["findings"][0]["fix"] == hostile
    assert data["tests"][0][0] == f"t.py::test[{hostile}]"
    assert hostile in data["steps"][1]["lines"][0]
    assert full.scripts[1:] == plain.scripts[1:]


def test_nothing_comes_from_outside() -> None:
    text = page(made_up.record("t", made_up.finding(1)))
    assert not re.findall(r"(?:src|href)=\"(?!#|data:)", text)
    assert not re.findall(
        r"url\(|@import|fetch\(|XMLHttpRequest|innerHTML|insertAdjacentHTML|document\.write", text
    )
    assert "default-src 'none'" in text


def test_placeholders_in_user_text_are_left_alone() -> None:
    text = page(made_up.record("@@js@@@@css@@@@data@@"))
    assert json.loads(Elements(text).scripts[0])["tests"][0][0] == "@@js@@@@css@@@@data@@"


def test_one_line_in_many_tests_is_there_once() -> None:
    data = build.data([made_up.record(f"t::{i:03}", made_up.finding(1)) for i in range(300)], {}, "/")
    (finding,) = data["findings"]
    assert (finding["test_count"], len(finding["tests"])) == (300, 200)
    assert [test[5] for test in data["tests"]] == [[0]] * 300


def test_a_test_says_how_devices_compare() -> None:
    record = {**made_up.record("t"), "parity": {"device": "cuda", "verdict": "agrees"}}
    assert build.data([record, made_up.record("u")], {}, "/")["tests"] == [
        ["t", "clean", 12, 11, None, [], "cuda: agrees"],
        ["u", "clean", 12, 11, None, [], None],
    ]


def test_accepted_is_a_state() -> None:
    data = build.data([made_up.record("t", made_up.finding(1, accepted="baseline"))], {}, "/")
    assert data["findings"][0]["state"] == "accepted"


def test_a_finding_of_which_nothing_is_known() -> None:
    bare = made_up.finding(
        1,
        saved=None,
        modified=None,
        used=None,
        values=None,
        gradients=(),
        relative_error=None,
        version_now=None,
    )
    data = build.data([made_up.record("t", bare)], {}, "/")
    assert (data["findings"][0]["steps"], data["findings"][0]["where"]) == ([], None)


def test_many_parameters_are_cut_and_counted() -> None:
    gradients = made_up.finding(1).gradients * 20
    (finding,) = build.data([made_up.record("t", made_up.finding(1, gradients=gradients))], {}, "/")[
        "findings"
    ]
    assert (len(finding["gradients"]), finding["gradients_wrong"]) == (12, 160)


@pytest.mark.parametrize("count", [1000])
def test_a_thousand_findings_are_small_and_quick(tmp_path: Path, count: int) -> None:
    (tmp_path / "folder").mkdir()
    for i in range(20):
        made_up.source(tmp_path, f"folder/file_{i}.py")
    made_up.source(tmp_path, "train.py")
    records = made_up.records(count)
    start = time.perf_counter()
    text = page(*records, root=str(tmp_path))
    assert time.perf_counter() - start < 20  # 1 s on an idle core
    assert len(json.loads(Elements(text).scripts[0])["findings"]) == count
    assert len(text.encode()) < 5_000_000
