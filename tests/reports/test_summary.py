"""The summary as data: grouped by line of code, worst first, no longer than asked for."""

from __future__ import annotations

import random
from typing import Any

import pytest

from pytest_inplace.reports.findings import Finding, Site, TensorInfo, to_json
from pytest_inplace.reports.summary import SHOWN_GROUPS, Line, group, summary


def finding(line: int | None = 5, error: float | None = 0.1, **other: Any) -> Finding:
    site = None if line is None else Site("model.py", line, "f", "x += 1")
    values = {"code": "INP102", "state": "confirmed", "modified": site, "relative_error": error, **other}
    return Finding(tensor=TensorInfo("h", (2,), "float32"), **values)


def record(nodeid: str, *findings: Finding, reason: str | None = None, **reasons: int) -> dict[str, Any]:
    return {
        "nodeid": nodeid,
        "verdict": "finding" if findings else "unchecked" if reason else "clean",
        "coverage": {"saved": 2, "content_checked": 1, "version_only": 1, "not_checked": reasons},
        "reason": reason,
        "findings": [to_json(f) for f in findings],
    }


def texts(lines: list[Line]) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]


def test_nothing_checked_says_nothing() -> None:
    assert summary([]) == []
    assert texts(summary([], ["cannot write x"])) == ["cannot write x"]


def test_counts() -> None:
    records = [record("a"), record("b"), record("c", reason="RuntimeError: no")]
    assert texts(summary(records))[0] == "2 tests checked, 6 saved tensors: 3 by content, 3 by version only"
    one = texts(summary([record("a")]))
    assert one == ["1 test checked, 2 saved tensors: 1 by content, 1 by version only"]


def test_one_line_of_code_in_200_tests_is_one_entry() -> None:
    records = [record(f"t{i:03}", finding(error=i / 1000)) for i in range(200)]
    lines = texts(summary(records))
    assert len(lines) == 2
    assert lines[1].startswith("model.py:5: INP102 saved-tensor-modified-silently: h f32[2] was overwritten")
    assert lines[1].endswith(" [200 tests]")
    (found,) = group(records)
    assert found.worst.relative_error == 0.199


def test_worst_first_latent_last_in_the_same_order_every_time() -> None:
    records = [
        record("a", finding(1, 0.5)),
        record("b", finding(2, 3.0), finding(None)),
        record("c", finding(3, None, state="latent"), finding(4, None)),
        record("d", finding(5, 0.5), finding(6, 9.0, state="latent")),
    ]
    expected = [2, 1, 5, None, 4, 6, 3]
    for seed in range(5):
        random.Random(seed).shuffle(records)
        assert [g.site and g.site.line for g in group(records)] == expected


def test_two_rules_on_one_line_are_two_entries() -> None:
    assert len(group([record("a", finding(), finding(code="INP101"))])) == 2


def test_latent_and_confirmed_on_one_line_are_one_entry_told_by_the_confirmed_one() -> None:
    records = [record("a", finding(state="latent", error=None)), record("b", finding(error=None))]
    (found,) = group(records)
    assert found.worst.state == "confirmed"
    assert [look for _, look in summary(records)[1]] == ["place", "error", "plain", "plain"]
    assert [look for _, look in summary(records[:1])[1]] == ["place", "warning", "plain"]


def test_what_a_baseline_accepts_is_no_entry() -> None:
    records = [record("a", finding(accepted="baseline"))]
    assert len(summary(records)) == 1
    assert len(group(records, accepted=True)) == 1


@pytest.mark.parametrize(
    ("verbosity", "expected"),
    [
        (0, []),
        (1, ["    t0", "    t1", "    t2", "    ... and 2 more (-vv shows all)"]),
        (2, ["    t0", "    t1", "    t2", "    t3", "    t4"]),
        (9, ["    t0", "    t1", "    t2", "    t3", "    t4"]),
    ],
)
def test_verbosity_shows_tests(verbosity: int, expected: list[str]) -> None:
    records = [record(f"t{i}", finding()) for i in range(5)]
    assert texts(summary(records, verbosity=verbosity))[2:] == expected


def test_many_entries_are_cut_and_said_to_be() -> None:
    records = [record("t", *(finding(i) for i in range(SHOWN_GROUPS + 7)))]
    lines = texts(summary(records))
    assert len(lines) == SHOWN_GROUPS + 2
    assert lines[-1] == "... and 7 more lines of code with findings (-v shows all)"
    assert not any("more line" in line for line in texts(summary(records, verbosity=1)))


def test_quiet_is_one_line() -> None:
    records = [record("a", finding(), finding(7, 12.0)), record("b", finding())]
    (line,) = texts(summary(records, verbosity=-1))
    assert line.endswith(" by version only; 3 findings at 2 lines of code, 12x off at worst")
    assert len(summary([record("a")], verbosity=-1)) == 1


def test_what_was_not_checked() -> None:
    records = [record(f"t{i:02}", reason="E: no") for i in range(12)] + [record("a", **{"2 threads": 3})]
    lines = texts(summary(records))
    assert lines[1] == "not checked: t00: E: no"
    assert lines[11:] == ["not checked: 2 more tests (-v shows all)", "not checked: 2 threads (3x)"]
    assert len(texts(summary(records, verbosity=1))) == 14
    short = texts(summary(records, verbosity=-1))
    assert short[1:] == ["not checked: 12 tests, 3 in other ways (without -q it says what and why)"]
