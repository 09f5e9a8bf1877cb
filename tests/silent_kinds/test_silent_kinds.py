"""What each tool sees of each kind of defect: the claims about PyTorch and about the plugin, by running them.

To accept a change of the table run ``python -m tests.silent_kinds`` and read the difference.
"""

from __future__ import annotations

import functools
import shutil

import pytest

from tests.reports.render import RECORDED_TORCH, torch_is_the_recorded_one
from tests.silent_kinds import observe as observing
from tests.silent_kinds.kinds import KINDS, Kind
from tests.silent_kinds.observe import RIGHT, Observation, load
from tests.silent_kinds.table import PAGE, README, extract, page, percent, readme_with, row

CAN_COMPILE = any(shutil.which(compiler) for compiler in ("c++", "g++", "clang++", "cl"))
needs_compiler = pytest.mark.skipif(not CAN_COMPILE, reason="Inductor needs a C++ compiler")
recorded_torch = pytest.mark.skipif(
    not torch_is_the_recorded_one(), reason=f"the table is that of torch {RECORDED_TORCH}"
)
observe = functools.cache(observing.observe)


def parameters(*plain: str) -> list[object]:
    return [
        pytest.param(kind, id=kind.name, marks=[pytest.mark.slow, needs_compiler] if kind.compiled else [])
        for kind in KINDS
        if kind.plain in plain
    ]


@pytest.mark.parametrize("kind", parameters("silent"))
def test_plain_pytorch_is_silent_and_wrong(kind: Kind) -> None:
    outcome = observe(kind).plain
    assert outcome.error is None
    assert outcome.off is not None
    assert outcome.off > 0.05


@pytest.mark.parametrize("kind", parameters("raises"))
def test_plain_pytorch_raises(kind: Kind) -> None:
    assert observe(kind).plain.error == "RuntimeError"


@pytest.mark.parametrize("kind", parameters("right"))
def test_plain_pytorch_is_right(kind: Kind) -> None:
    assert observe(kind).plain.off == 0


@pytest.mark.parametrize("kind", parameters("silent", "raises", "right"))
def test_the_program_runs_the_same_under_the_plugin(kind: Kind) -> None:
    observation = observe(kind)
    assert observation.plugin == observation.plain


@pytest.mark.parametrize("kind", [p for p in parameters("silent", "raises") if p.values[0].code])
def test_the_plugin_names_the_rule_and_the_lines(kind: Kind) -> None:
    observation = observe(kind)
    (finding,) = observation.findings
    assert (finding.code, finding.state) == (kind.code, "confirmed")
    path = load(kind).__file__
    saved, written = finding.saved, finding.modified
    assert (saved and saved.line) == observation.saved_line
    assert (written and written.line) == observation.written_line
    assert {site.path for site in (saved, written) if site is not None} == {path}


@pytest.mark.parametrize("kind", [p for p in parameters("silent") if p.values[0].code])
def test_the_plugin_measures_the_error_of_the_gradients(kind: Kind) -> None:
    observation = observe(kind)
    (finding,) = observation.findings
    if kind.judged:
        assert finding.relative_error == pytest.approx(observation.plain.off, rel=1e-5)
    else:
        assert finding.relative_error is None


def test_the_plugin_sees_all_that_is_silent() -> None:
    assert [kind.name for kind in KINDS if kind.plain == "silent" and kind.code is None] == []


@pytest.mark.parametrize("kind", parameters("right"))
def test_the_plugin_finds_nothing_where_nothing_is_wrong(kind: Kind) -> None:
    assert observe(kind).findings == []


@pytest.mark.parametrize("kind", parameters("silent", "raises", "right"))
def test_percentages_are_far_from_where_they_are_rounded(kind: Kind) -> None:
    for off in measured(observe(kind)):
        assert percent(off * 0.98) == percent(off) == percent(off * 1.02)


def measured(observation: Observation) -> list[float]:
    offs = [o.off for o in (observation.plain, observation.anomaly, observation.mutation)]
    offs += [finding.relative_error for finding in observation.findings]
    return [off for off in offs if off is not None and off > RIGHT]


@recorded_torch
@pytest.mark.parametrize("kind", parameters("silent", "raises", "right"))
def test_row_of_the_table(kind: Kind) -> None:
    lines = PAGE.read_text(encoding="utf-8").splitlines(keepends=True)
    (recorded,) = [line for line in lines if f"[{kind.name}](" in line]
    assert row(observe(kind)) == recorded


@recorded_torch
@pytest.mark.slow
@needs_compiler
def test_the_page_is_what_was_observed() -> None:
    assert PAGE.read_text(encoding="utf-8") == page([observe(kind) for kind in KINDS])


def test_every_program_is_in_the_table() -> None:
    folder = PAGE.parent.parent / "tests" / "silent_kinds" / "programs"
    assert {p.stem for p in folder.glob("*.py")} - {"__init__"} == {kind.name for kind in KINDS}


def test_the_readme_has_an_extract_of_the_page() -> None:
    table = extract(PAGE.read_text(encoding="utf-8"))
    assert README.read_text(encoding="utf-8") == readme_with(table)
    assert table in README.read_text(encoding="utf-8")
