"""Accepted findings as a file: what was there when the check was turned on, and is to be driven to zero.

An entry is found again by what does not change when lines move: the rule, the file, the function's
qualified name and the source text of the line that wrote (of the line that saved, where the one that
wrote is not known). The tests that showed it are kept beside it, to tell when it is gone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from pytest_inplace.reports.findings import Finding, from_json, rule_for

FORMAT = "pytest-inplace baseline"
VERSION = 1


class BaselineError(ValueError):
    """The text is no baseline; the message says what is wrong with it."""


@dataclass(frozen=True, order=True)
class Key:
    """What identifies a defect however the lines around it move; in the order of the file."""

    path: str
    function: str
    source: str
    rule: str


def key_of(finding: Finding) -> Key:
    """The key of a finding whose paths are relative to the project's root."""
    site = finding.modified or finding.saved or finding.used
    if site is None:
        return Key("", "", "", finding.code)
    source = " ".join((site.source or "").split())
    return Key(site.path.replace("\\", "/"), site.qualname or site.function, source, finding.code)


@dataclass
class Entry:
    """One accepted defect: the tests that showed it, and whether a backward pass ever used the tensor."""

    tests: set[str] = field(default_factory=set)
    state: str = "latent"

    def add(self, tests: Iterable[str], state: str) -> None:
        self.tests.update(tests)
        if state == "confirmed":
            self.state = state


@dataclass
class Baseline:
    """Accepted findings by key."""

    entries: dict[Key, Entry] = field(default_factory=dict)

    def accepts(self, finding: Finding) -> bool:
        return key_of(finding) in self.entries

    def add(self, key: Key, tests: Iterable[str], state: str) -> None:
        self.entries.setdefault(key, Entry()).add(tests, state)

    def stale(
        self,
        records: Iterable[dict[str, Any]],
        gone: Callable[[str], bool] = lambda nodeid: False,
        latent: bool = True,
        parity: bool = True,
    ) -> list[Key]:
        """The entries that no test of this run showed, though every test that once did was checked in it.

        Args:
            records: the tests of the run, as the JSON contract has them.
            gone: tells of a test that was not run whether it no longer exists.
            latent: whether the run looked for latent findings; else those entries are left alone.
            parity: whether it compared devices; likewise.
        """
        checked: set[str] = set()
        shown: set[Key] = set()
        for record in records:
            if record["verdict"] != "unchecked":
                checked.add(record["nodeid"])
            shown.update(key_of(from_json(data)) for data in record["findings"])
        return sorted(
            key
            for key, entry in self.entries.items()
            if key not in shown
            and (latent or entry.state == "confirmed")
            and (parity or not key.rule.startswith("INP3"))
            and all(test in checked or gone(test) for test in entry.tests)
        )

    def updated(self, records: Collection[dict[str, Any]], stale: Iterable[Key]) -> Baseline:
        """Without the stale entries, with what this run accepted; tests that did not run stay listed."""
        dropped = set(stale)
        ran = {record["nodeid"] for record in records if record["verdict"] != "unchecked"}
        now = Baseline()
        for record in records:
            for data in record["findings"]:
                if data["accepted"] == "baseline":
                    now.add(key_of(from_json(data)), [record["nodeid"]], data["state"])
        for key, entry in self.entries.items():
            if key in dropped:
                continue
            now.add(key, entry.tests - ran if key in now.entries else entry.tests, entry.state)
        return now

    def dumps(self) -> str:
        """The file: sorted, one value on each line, so that a change of it is easy to review."""
        findings = [
            {
                "path": key.path,
                "function": key.function,
                "source": key.source,
                "rule": key.rule,
                "state": self.entries[key].state,
                "tests": sorted(self.entries[key].tests),
            }
            for key in sorted(self.entries)
        ]
        document = {"format": FORMAT, "version": VERSION, "findings": findings}
        return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def loads(text: str) -> Baseline:
    """The baseline of a file. Entries that a merge has doubled become one.

    Raises:
        BaselineError: if the text is no baseline of this format.
    """
    try:
        document = json.loads(text)
    except ValueError as error:
        raise BaselineError(f"not JSON: {error}") from None
    except RecursionError:
        raise BaselineError("not a baseline: nested too deeply") from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise BaselineError(f'not a baseline: there is no "format": "{FORMAT}" in it')
    if document.get("version") != VERSION:
        raise BaselineError(f"version {document.get('version')!r}, where this release reads {VERSION}")
    findings = document.get("findings")
    if not isinstance(findings, list):
        raise BaselineError('"findings" is not a list')
    baseline = Baseline()
    for number, data in enumerate(findings, 1):
        key, tests, state = _entry(data, number)
        baseline.add(key, tests, state)
    return baseline


def _entry(data: Any, number: int) -> tuple[Key, list[str], str]:
    def wrong(problem: str) -> BaselineError:
        return BaselineError(f"finding {number}: {problem}")

    if not isinstance(data, dict):
        raise wrong("not an object")
    for name in ("path", "function", "source", "rule"):
        if not isinstance(data.get(name), str):
            raise wrong(f'"{name}" is not a text')
    tests = data.get("tests")
    if not isinstance(tests, list) or not all(isinstance(test, str) for test in tests):
        raise wrong('"tests" is not a list of texts')
    state = data.get("state")
    if state not in ("confirmed", "latent"):
        raise wrong(f'"state" is {state!r}, not "confirmed" or "latent"')
    try:
        rule = rule_for(data["rule"]).code
    except KeyError as error:
        raise wrong(error.args[0]) from None
    return Key(data["path"], data["function"], data["source"], rule), tests, state
