"""Whatever a finding holds, every report can be made of it, and it comes back from JSON as it was."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

pytest.importorskip("hypothesis")
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from pytest_inplace.reports import baseline, sarif, snippets
from pytest_inplace.reports.findings import (
    RULES,
    Change,
    Finding,
    GradientError,
    OtherTensor,
    Site,
    TensorInfo,
    ValueDiff,
    from_json,
    to_json,
)
from pytest_inplace.reports.page import build
from pytest_inplace.reports.pictures import HeatMap, Histogram
from pytest_inplace.reports.rendering import report
from pytest_inplace.reports.summary import summary
from tests.reports.sarif_schema import problems

# Any character, lone surrogates included: a file name or a source may hold bytes that are no text.
texts = st.text(st.characters(codec=None), max_size=20)
lines = texts.filter(lambda text: "\n" not in text and "\r" not in text)
small = st.integers(0, 40)
numbers = st.none() | st.floats(allow_nan=False, allow_infinity=False)
shapes = st.lists(small, max_size=5).map(tuple)
columns = st.none() | small


@st.composite
def sites(draw: st.DrawFn) -> Site:
    start = draw(columns)
    end = None if start is None else start + draw(small)
    return Site(
        draw(lines | st.just("<string>")), draw(small), draw(lines), draw(st.none() | lines), start, end,
        draw(st.none() | texts), draw(st.none() | lines),
    )  # fmt: skip


tensors = st.builds(TensorInfo, st.none() | texts, shapes, texts, texts, st.booleans())
heats = st.builds(
    HeatMap, st.none() | small, small, small, st.tuples(small, small), st.just(("01!", "9.."))
)  # fmt: skip
histograms = st.builds(
    Histogram, st.floats(-9, 0), st.floats(1, 9), st.just((1, 2)), st.just((0, 3)), st.tuples(small, small)
)
changes = st.builds(Change, shapes, texts, texts)
diffs = st.builds(
    ValueDiff, small, small, numbers, st.lists(changes, max_size=2).map(tuple), st.none() | heats
)
words = st.sampled_from([(), ("1",)])
errors = st.builds(
    GradientError, texts, shapes, numbers, numbers, numbers, words, words, st.none() | histograms
)
others = st.builds(OtherTensor, tensors, st.none() | sites())
maybe_site = st.none() | sites()
findings = st.builds(
    Finding, st.sampled_from([rule.code for rule in RULES]), st.sampled_from(["confirmed", "latent"]),
    tensors,
    maybe_site, maybe_site, st.just(False), maybe_site, st.none() | small, st.none() | small,
    st.none() | diffs,
    st.lists(errors, max_size=3).map(tuple), st.booleans(), small, st.none() | st.floats(0, 1e300),
    st.none() | texts, st.booleans(), small, st.lists(others, max_size=2).map(tuple), st.none() | texts,
    st.none() | texts, accepted=st.none() | st.just("baseline"),
)  # fmt: skip


def record(nodeid: str, found: list[Finding]) -> dict[str, Any]:
    coverage = {"saved": 1, "content_checked": 1, "version_only": 0, "not_checked": {}}
    return {
        "nodeid": nodeid, "verdict": "finding" if found else "clean", "coverage": coverage, "reason": None,
        "findings": [to_json(f) for f in found],
    }  # fmt: skip


# Shrinking findings this large takes minutes and tells little more than the first failure.
@settings(
    max_examples=40, deadline=None, suppress_health_check=list(HealthCheck),
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)  # fmt: skip
@given(found=st.lists(findings, max_size=3), nodeid=texts)
def test_every_report_of_any_findings(found: list[Finding], nodeid: str, pytestconfig: pytest.Config) -> None:
    records = [record(nodeid, found)]
    assert json.loads(json.dumps(records)) == records
    for each in found:
        # A site that is not exact says so only where there is one.
        assert from_json(json.loads(json.dumps(to_json(each)))) == dataclasses.replace(
            each, saved=each.saved, modified=_without_op(each.modified), used=_without_op(each.used),
            also=tuple(OtherTensor(o.tensor, _without_op(o.saved)) for o in each.also),
        )  # fmt: skip
        assert report(each)
        assert snippets.html_extra(each).count("<li>") == snippets.html_extra(each).count("</li>")
        snippets.junit_properties([each])
        made = baseline.Baseline()
        made.add(baseline.key_of(each), [nodeid], each.state)
        assert baseline.loads(made.dumps().encode("utf-8", "backslashreplace").decode()) == made
    for verbosity in (-1, 0, 1, 2):
        summary(records, ["a note"], verbosity)
    assert problems(sarif.document(records, "0.1.0", {}), pytestconfig) == []
    page = build.page(records, {}, "/nowhere")
    assert page.count("</script>") == 2
    page.encode("utf-8", errors="backslashreplace")


def _without_op(site: Site | None) -> Site | None:
    """Only where a tensor was saved is it told for which operation."""
    return None if site is None else dataclasses.replace(site, op=None)
