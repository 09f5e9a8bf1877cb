"""The page as text.

What comes from the user's code is in it as JSON only, and the script never parses that as HTML.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from pytest_inplace.reports.excerpts import Excerpt, excerpt
from pytest_inplace.reports.findings import RULES, Finding, GradientError, Site
from pytest_inplace.reports.pictures import heat_map_json, histogram_json
from pytest_inplace.reports.rendering import facts, headline, percent, places, subject
from pytest_inplace.reports.summary import Group, group

_HERE = Path(__file__).parent
_SHOWN_GRADIENTS = 12
_SHOWN_TESTS = 200


def page(records: Iterable[Mapping[str, Any]], about: Mapping[str, Any], root: str) -> str:
    """The whole page.

    Args:
        records: the tests of the run, as the JSON contract has them.
        about: name and value of what the page says about the run, as versions.
        root: the folder that paths in the records are relative to; sources are read from there.
    """
    text = json.dumps(data(records, about, root), separators=(",", ":"))
    # Inside a script element only "<" can end it or open a comment.
    text = text.replace("<", "\\u003c")
    template = _asset("page.html")
    for name, content in (("css", _asset("page.css")), ("js", _asset("page.js")), ("data", text)):
        template = template.replace(f"@@{name}@@", content, 1)
    return template


def _asset(name: str) -> str:
    return (_HERE / name).read_text(encoding="utf-8")


def data(records: Iterable[Mapping[str, Any]], about: Mapping[str, Any], root: str) -> dict[str, Any]:
    """What the page shows: each finding once, however many tests show it."""
    ordered = [dict(record) for record in sorted(records, key=lambda record: str(record["nodeid"]))]
    index = {record["nodeid"]: number for number, record in enumerate(ordered)}
    groups = group(ordered, accepted=True)
    steps = _Steps(root)
    found: list[list[int]] = [[] for _ in ordered]
    for number, each in enumerate(groups):
        for nodeid in each.tests:
            found[index[nodeid]].append(number)
    return {
        "about": dict(about),
        "rules": {rule.code: [rule.name, rule.summary] for rule in RULES},
        "tests": [
            [
                record["nodeid"],
                record["verdict"],
                record["coverage"]["saved"],
                record["coverage"]["content_checked"],
                record["reason"],
                found[number],
                _parity(record.get("parity")),
            ]
            for number, record in enumerate(ordered)
        ],
        "findings": [_finding(each, index, steps) for each in groups],
        "steps": steps.all,
    }


def _parity(parity: Mapping[str, Any] | None) -> str | None:
    return None if parity is None else f"{parity['device']}: {parity['verdict']}"


class _Steps:
    """Places with their source, each once: one line often saves or uses what many others overwrite."""

    def __init__(self, root: str) -> None:
        self.all: list[dict[str, Any]] = []
        self._root = root
        self._known: dict[tuple[str, Site], int] = {}

    def number(self, verb: str, site: Site, finding: Finding) -> int:
        known = self._known.get((verb, site))
        if known is None:
            known = self._known[verb, site] = len(self.all)
            self.all.append(_step(verb, site, finding, self._root))
        return known


def _finding(each: Group, index: Mapping[str, int], steps: _Steps) -> dict[str, Any]:
    worst, tests = each.worst, each.tests
    accepted = all(finding.accepted for _, finding in each.findings)
    return {
        "code": worst.code,
        "state": "accepted" if accepted else worst.state,
        "headline": headline(worst),
        "subject": subject(worst.tensor),
        "device": worst.tensor.device,
        "where": None if each.site is None else f"{each.site.path}:{each.site.line}",
        "file": None if each.site is None else each.site.path,
        "tests": [index[nodeid] for nodeid in tests[:_SHOWN_TESTS]],
        "test_count": len(tests),
        "off": None if worst.relative_error is None else percent(worst.relative_error),
        "steps": [steps.number(verb, site, worst) for verb, site in places(worst)],
        "versions": [worst.version_saved, worst.version_now],
        "raised": worst.raised,
        "values": _values(worst),
        "gradients": [_gradient(error) for error in worst.gradients[:_SHOWN_GRADIENTS]],
        "gradients_wrong": len(worst.gradients),
        "gradients_total": worst.gradients_total,
        "also": [subject(other.tensor) for other in worst.also[:10]],
        "fix": worst.fix,
        "note": worst.note,
        "words": [] if worst.divergence is None else facts(worst),
        "options": "--inplace-check"
        if worst.divergence is None
        else f"--inplace-parity={worst.divergence.device}",
    }


def _step(verb: str, site: Site, finding: Finding, root: str) -> dict[str, Any]:
    kind = "saved" if site is finding.saved else "used" if site is finding.used else "written"
    found: Excerpt = excerpt(site, root, around=1 if kind == "used" else 3)
    return {
        "kind": kind,
        "verb": verb,
        "path": site.path,
        "line": site.line,
        "function": site.qualname or site.function,
        "first": found.first,
        "lines": found.lines,
        "mark": None if found.start is None else [found.start, found.end],
        "note": found.note,
    }


def _values(finding: Finding) -> dict[str, Any] | None:
    values = finding.values
    if values is None:
        return None
    return {
        "changed": values.changed,
        "total": values.total,
        "max_abs": _rounded(values.max_abs),
        "largest": [[list(change.index), change.before, change.after] for change in values.largest],
        "shape": finding.tensor.shape,
        "heat": heat_map_json(values.heat),
    }


def _gradient(error: GradientError) -> dict[str, Any]:
    return {
        "name": error.name,
        "shape": error.shape,
        "max_abs": _rounded(error.max_abs),
        "max_rel": _rounded(error.max_rel),
        "cosine": _rounded(error.cosine),
        "worst": [error.right[0], error.computed[0]] if error.right and error.computed else None,
        "histogram": histogram_json(error.histogram),
    }


def _rounded(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.5g}")
