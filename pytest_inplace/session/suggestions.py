"""``--inplace-suggest``: after the run, changes of the user's source are made up, tried and shown."""

from __future__ import annotations

import importlib.util
import linecache
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from pytest_inplace.reports.edits import Change, merged, suggest
from pytest_inplace.reports.findings import Finding, Site, from_json
from pytest_inplace.session.project_copy import NotCopied
from pytest_inplace.session.proving import NO_GRADIENTS, Prover, Untested
from pytest_inplace.session.trials import Trials

Defect = tuple[str, Finding]
"""A finding and the id of a test that has it."""


def require_libcst(option: str) -> None:
    """Refuse to start without what edits the source.

    Raises:
        pytest.UsageError: naming the extra that brings it.
    """
    if importlib.util.find_spec("libcst") is None:
        raise pytest.UsageError(f"{option} needs libcst: pip install 'pytest-inplace[suggest]'")


@dataclass
class Outcome:
    """What came of one defect: the proved change, or the likeliest one and why it is not proved."""

    nodeid: str
    finding: Finding
    tests: int
    proved: Change | None = None
    untested: Change | None = None
    why: str = ""
    tried: int = 0


@dataclass(eq=False)
class Suggestions:
    """Collects the findings of a run, in the main process, and deals with them at its end."""

    config: pytest.Config
    apply: bool
    _defects: dict[tuple[object, ...], list[Defect]] = field(default_factory=dict)
    _started: float = field(default_factory=time.time)

    def pytest_inplace_checked(self, record: dict[str, Any]) -> None:
        for data in record["findings"]:
            finding = from_json(data)
            where = finding.modified or finding.saved
            key = (finding.code, where and (where.path, where.line))
            self._defects.setdefault(key, []).append((record["nodeid"], finding))

    @pytest.hookimpl(trylast=True)
    def pytest_terminal_summary(self, terminalreporter: Any, exitstatus: int) -> None:
        if not self._defects or exitstatus == pytest.ExitCode.INTERRUPTED:
            return
        terminalreporter.section("inplace: suggested changes")
        outcomes = []
        with tempfile.TemporaryDirectory(prefix="pytest-inplace-", ignore_cleanup_errors=True) as name:
            trials = Trials(Path(name))
            try:
                for number, group in enumerate(self._defects.values(), 1):
                    # What is tried is written before it is, for that takes seconds.
                    terminalreporter.write(
                        f"[{number}/{len(self._defects)}] {_title(*group[0])}: ", bold=True
                    )
                    terminalreporter.flush()
                    outcome = self._settle(group, Path(name), trials)
                    outcomes.append(outcome)
                    _show(terminalreporter, outcome)
            finally:
                trials.close()
        proved = [o for o in outcomes if o.proved is not None]
        terminalreporter.write_line(
            f"{len(proved)} of {len(outcomes)} defects have a proved change: with it the test passes, "
            "nothing is found, and every loss and gradient is the right one"
        )
        if self.apply:
            for line in self._apply([o.proved for o in proved if o.proved is not None]):
                terminalreporter.write_line(line)

    def _settle(self, group: list[Defect], folder: Path, trials: Trials) -> Outcome:
        nodeid, finding = max(group, key=lambda defect: defect[1].relative_error or 0)
        outcome = Outcome(nodeid, finding, len(group))
        try:
            changes = suggest(finding, self._read)
            self._unchanged(finding.modified)
        except (Untested, ValueError, OSError) as error:
            outcome.why = str(error)
            return outcome
        if not changes:
            outcome.why = _no_change(finding)
            return outcome
        outcome.untested = changes[0]
        prover = Prover(self.config, nodeid, finding, folder, trials)
        try:
            prover.prepare()
            for change in changes:
                why = prover.prove(change)
                outcome.tried += 1
                if why is None:
                    outcome.proved = change
                    return outcome
                if why == NO_GRADIENTS:
                    outcome.untested, outcome.why = change, why
                    return outcome
                outcome.why = outcome.why or why
        except (Untested, NotCopied) as error:
            outcome.why = outcome.why or str(error)
        return outcome

    def _read(self, path: str) -> bytes:
        """The content of a file of the project.

        Raises:
            Untested: for a file that is not on disk or not in the project, or that changed during the run.
        """
        whole = self.config.rootpath / path
        if not whole.is_file():
            raise Untested(f"{path} is not a file on disk")
        if not whole.resolve().is_relative_to(self.config.rootpath.resolve()):
            raise Untested(f"{path} is not below rootdir")
        if whole.stat().st_mtime > self._started:
            raise Untested(f"{path} has changed since the run began")
        return whole.read_bytes()

    def _unchanged(self, site: Site | None) -> None:
        if site is None or site.source is None:
            return
        path = str(self.config.rootpath / site.path)
        linecache.checkcache(path)
        if linecache.getline(path, site.line).rstrip("\r\n") != site.source:
            raise Untested(f"{site.path} has changed since the run began")

    def _apply(self, changes: list[Change]) -> list[str]:
        lines = []
        for path in sorted({change.path for change in changes}):
            of_file = [change for change in changes if change.path == path]
            try:
                if self._read(path) != of_file[0].before:
                    raise Untested(f"{path} has changed since the run began")
                content, left_out = merged(of_file)
                Path(self.config.rootpath, path).write_bytes(content)
            except (Untested, OSError) as error:
                lines.append(f"not applied: {error}")
                continue
            lines.append(f"applied to {path}: {len(of_file) - len(left_out)}")
            if left_out:
                lines.append(f"not applied to {path}: {len(left_out)} on the same lines; run again")
        return lines


def _no_change(finding: Finding) -> str:
    if finding.modified is None:
        return "the line that wrote is not known"
    return "no change is known for this kind of write"


def _title(nodeid: str, finding: Finding) -> str:
    site = finding.modified or finding.saved
    where = f"{site.path}:{site.line}" if site is not None else nodeid
    return f"{where}: {finding.code}"


def _show(reporter: Any, outcome: Outcome) -> None:
    """The rest of the line that was begun, and what there is to show."""
    change = outcome.proved or outcome.untested
    state = "proved" if outcome.proved is not None else "untested"
    title = f": {change.title}" if change is not None else ""
    reporter.write_line(f"{state}{title}", bold=True)
    if outcome.proved is not None:
        others = f", not with {outcome.tests - 1} more that it fails" if outcome.tests > 1 else ""
        reporter.write_line(f"    with {outcome.nodeid}{others}")
    else:
        more = f" ({outcome.tried} changes were tried)" if outcome.tried > 1 else ""
        reporter.write_line(f"    {outcome.why}{more}")
    if change is None:
        return
    for line in change.diff().splitlines():
        markup = {"red": line.startswith("-"), "green": line.startswith("+")}
        reporter.write_line(line, **markup)
