"""The end of a run as text: how much was checked, what was found, what could not be checked.

One line of code that corrupts the gradients of 200 tests is one entry; the worst error comes first.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pytest_inplace.reports.findings import Coverage, Finding, Site, from_json
from pytest_inplace.reports.rendering import headline, percent

Look = Literal["place", "error", "warning", "plain"]
Line = list[tuple[str, Look]]
"""Pieces of text, each with what it is; how that looks is for the terminal to say."""

SHOWN_GROUPS = 30
SHOWN_TESTS = 3
SHOWN_NOT_CHECKED = 10


@dataclass
class Group:
    """The findings of one rule that one line of code caused, in whatever tests."""

    site: Site | None
    findings: list[tuple[str, Finding]] = field(default_factory=list)

    @property
    def worst(self) -> Finding:
        return min((f for _, f in self.findings), key=_badness)

    @property
    def tests(self) -> list[str]:
        return sorted({nodeid for nodeid, _ in self.findings})


def _badness(finding: Finding) -> tuple[bool, float]:
    return finding.state == "latent", -(finding.relative_error or 0.0)


def group(records: Iterable[dict[str, Any]], accepted: bool = False) -> list[Group]:
    """The findings of all tests by the line that wrote (or saved, where that is not known), worst first.

    Args:
        records: the tests, as the JSON contract has them.
        accepted: whether findings that a baseline accepts count as well.
    """
    groups: dict[tuple[object, ...], Group] = {}
    for record in records:
        for data in record["findings"]:
            finding = from_json(data)
            if finding.accepted and not accepted:
                continue
            site = finding.modified or finding.saved or finding.used
            key = (finding.code, finding.modified is None, site and (site.path, site.line))
            groups.setdefault(key, Group(site)).findings.append((record["nodeid"], finding))
    return sorted(groups.values(), key=_order)


def _order(each: Group) -> tuple[object, ...]:
    """Worst first, and the same in every run, in whatever order workers deliver."""
    where = (each.site.path, each.site.line) if each.site is not None else ("", 0)
    return (*_badness(each.worst), *where, each.worst.code)


def summary(records: Sequence[dict[str, Any]], notes: Iterable[str] = (), verbosity: int = 0) -> list[Line]:
    """The lines of the summary.

    Args:
        records: the tests, as the JSON contract has them.
        notes: further lines, about files and the like.
        verbosity: below 0: one line for all findings. 0: one for each line of code. 1: with the first
            tests of each. 2: with all of them.
    """
    further: list[Line] = [[(note, "warning" if _is_trouble(note) else "plain")] for note in notes]
    if not records:
        return further
    coverage = Coverage()
    for each in records:
        c = each["coverage"]
        coverage.add(Coverage(c["saved"], c["content_checked"], c["version_only"], dict(c["not_checked"])))
    unchecked = [r for r in records if r["verdict"] == "unchecked"]
    checked: Line = [
        (
            f"{count(len(records) - len(unchecked), 'test')} checked, "
            f"{count(coverage.saved, 'saved tensor')}: {coverage.content_checked} by content, "
            f"{coverage.version_only} by version only",
            "plain",
        )
    ]
    groups = group(records)
    if verbosity < 0:
        return [[*checked, *_in_short(groups)], *further, *_unchecked_in_short(unchecked, coverage)]
    lines = [checked]
    shown = groups if verbosity > 0 else groups[:SHOWN_GROUPS]
    for each_group in shown:
        lines += _entry(each_group, verbosity)
    if len(groups) > len(shown):
        rest = groups[len(shown) :]
        lines.append(
            [(f"... and {count(len(rest), 'more line')} of code with findings (-v shows all)", "plain")]
        )
    return [*lines, *further, *_unchecked(unchecked, coverage, verbosity)]


def _entry(each: Group, verbosity: int) -> list[Line]:
    worst, tests = each.worst, each.tests
    line: Line = []
    if each.site is not None:
        line.append((f"{each.site.path}:{each.site.line}: ", "place"))
    text = headline(worst)
    line.append((text[: len(worst.code)], "error" if worst.state == "confirmed" else "warning"))
    line.append((text[len(worst.code) :], "plain"))
    if len(tests) > 1:
        line.append((f" [{len(tests)} tests]", "plain"))
    lines = [line]
    if verbosity > 0:
        shown = tests if verbosity > 1 else tests[:SHOWN_TESTS]
        lines += [[(f"    {nodeid}", "plain")] for nodeid in shown]
        if len(tests) > len(shown):
            lines.append([(f"    ... and {len(tests) - len(shown)} more (-vv shows all)", "plain")])
    return lines


def _in_short(groups: list[Group]) -> Line:
    if not groups:
        return []
    findings = sum(len(each.findings) for each in groups)
    worst = groups[0].worst
    off = f", {percent(worst.relative_error)} off at worst" if worst.relative_error is not None else ""
    return [(f"; {count(findings, 'finding')} at {count(len(groups), 'line')} of code{off}", "error")]


def _unchecked(unchecked: list[dict[str, Any]], coverage: Coverage, verbosity: int) -> list[Line]:
    shown = unchecked if verbosity > 0 else unchecked[:SHOWN_NOT_CHECKED]
    texts = [f"not checked: {each['nodeid']}: {each['reason']}" for each in shown]
    if len(unchecked) > len(shown):
        texts.append(f"not checked: {len(unchecked) - len(shown)} more tests (-v shows all)")
    texts += [f"not checked: {reason} ({number}x)" for reason, number in sorted(coverage.reasons.items())]
    return [[(text, "warning")] for text in texts]


def _unchecked_in_short(unchecked: list[dict[str, Any]], coverage: Coverage) -> list[Line]:
    parts = [count(len(unchecked), "test")] if unchecked else []
    others = sum(coverage.reasons.values())
    parts += [f"{others} in other ways"] if others else []
    return (
        [[(f"not checked: {', '.join(parts)} (without -q it says what and why)", "warning")]] if parts else []
    )


def _is_trouble(note: str) -> bool:
    return note.startswith("cannot ") or "stale" in note or "not updated" in note


def count(number: int, noun: str) -> str:
    """``1 test``, ``2 tests``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"
