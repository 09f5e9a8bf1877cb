"""Findings in pytest's own terms: the failure, the record of a test, the summary, the JSON file."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

import pytest
from _pytest._code.code import ExceptionChainRepr, ReprEntry, ReprFileLocation, ReprTraceback

from pytest_inplace import __version__
from pytest_inplace.reports import snippets
from pytest_inplace.reports.findings import Coverage, Finding, OtherTensor, Site, to_json
from pytest_inplace.reports.parity import ParityRecord
from pytest_inplace.reports.rendering import excerpt, facts, headline, places, report
from pytest_inplace.reports.summary import Line, summary
from pytest_inplace.session import files
from pytest_inplace.session.explain import pages
from pytest_inplace.session.parity_summary import parity_lines

if TYPE_CHECKING:
    from pytest_inplace.session.baselines import BaselineOfRun
    from pytest_inplace.session.options import Settings

Style = Literal["long", "short", "line", "no", "native", "value", "auto"]


def relative(finding: Finding, rootpath: Path) -> Finding:
    """The finding with paths relative to ``rootpath`` where they lie below it."""

    def shorten(site: Site | None) -> Site | None:
        if site is None:
            return None
        try:
            path = os.path.relpath(os.path.realpath(site.path), os.path.realpath(rootpath))
        except ValueError:  # another drive
            return site
        return (
            site
            if path.startswith("..") or site.path.startswith("<")
            else dataclasses.replace(site, path=path)
        )

    also = tuple(OtherTensor(o.tensor, shorten(o.saved)) for o in finding.also)
    return dataclasses.replace(
        finding,
        saved=shorten(finding.saved),
        modified=shorten(finding.modified),
        used=shorten(finding.used),
        also=also,
    )


def closing(finding: Finding, nodeid: str) -> list[str]:
    """How to allow the finding, how to see it again, and where to read about it."""
    option = f"--inplace-parity={finding.divergence.device}" if finding.divergence else "--inplace-check"
    silent = finding.code in ("INP102", "INP103") and finding.raised is None
    return [
        f'to allow it: @pytest.mark.inplace_safe(allow=["{finding.code}"], reason="...")'
        + (', or `with inplace.allow(reason="..."):` around the write' if silent else ""),
        f"to see it again: pytest '{nodeid}' {option}",
        f"about this rule: pytest --inplace-explain={finding.code}",
    ]


def representation(findings: list[Finding], nodeid: str, style: Style) -> Any:
    """Findings as pytest shows a failure: an entry for each place, with the facts as error lines."""
    if style == "native":
        return "\n\n".join("\n".join([report(f), *closing(f, nodeid)]) for f in findings)
    chain = []
    # The first finding comes last, where pytest reads the location of the failure.
    for finding in [*findings[1:], findings[0]]:
        if style == "line":
            entries = [ReprEntry(["E   " + headline(finding)], None, None, None, "value")]
        else:
            entries = _entries(finding, nodeid, "short" if style == "short" else "long")
        following = None if finding is findings[0] else "Another finding in the same test:"
        chain.append((ReprTraceback(entries, None, "short" if style == "short" else "long"),
                      _crash(finding, nodeid), following))  # fmt: skip
    return ExceptionChainRepr(chain)


def _crash(finding: Finding, nodeid: str) -> ReprFileLocation:
    site = finding.modified or finding.used or finding.saved
    path, line = (site.path, site.line) if site is not None else (nodeid.partition("::")[0], 1)
    # Of more than one line the terminal shows the first; annotations and junit files show them all.
    where = [f"{verb}: {place.path}:{place.line}" for verb, place in places(finding)]
    return ReprFileLocation(path, line, "\n".join([headline(finding), *where]))


def _entries(finding: Finding, nodeid: str, style: Literal["long", "short"]) -> list[ReprEntry]:
    errors = ["E   " + line for line in (headline(finding), *facts(finding), *closing(finding, nodeid))]
    found = places(finding)
    entries = []
    for i, (verb, site) in enumerate(found):
        lines = excerpt(site, ">   " if style == "long" else "    ")
        if i + 1 == len(found):
            lines += errors
        location = f"{verb}, in {site.function}" if style == "long" else f"in {site.function} ({verb})"
        entries.append(ReprEntry(lines, None, None, ReprFileLocation(site.path, site.line, location), style))
    if not entries:
        path = nodeid.partition("::")[0]
        entries.append(ReprEntry(errors, None, None, ReprFileLocation(path, 1, headline(finding)), style))
    return entries


def attach(longrepr: Any, findings: list[Finding], nodeid: str) -> Any:
    """Put the explanation below a failure that PyTorch or the test itself raised."""
    text = "\n\n".join("\n".join([report(f), *closing(f, nodeid)]) for f in findings)
    if hasattr(longrepr, "addsection"):
        longrepr.addsection(f"inplace: {', '.join(dict.fromkeys(f.code for f in findings))}", text)
        return longrepr
    if isinstance(longrepr, str):
        return f"{longrepr}\n\n{text}"
    return longrepr


def record(
    nodeid: str,
    findings: list[Finding],
    coverage: Coverage,
    trouble: str | None,
    parity: ParityRecord | None = None,
) -> dict[str, Any]:
    """One test as the JSON contract has it."""
    verdict = "finding" if findings else "unchecked" if trouble else "clean"
    return {
        "nodeid": nodeid,
        "verdict": verdict,
        "coverage": {
            "saved": coverage.saved,
            "content_checked": coverage.content_checked,
            "version_only": coverage.version_only,
            "not_checked": dict(sorted(coverage.reasons.items())),
        },
        "reason": trouble,
        "parity": parity.to_json() if parity is not None else None,
        "findings": [to_json(f) for f in findings],
    }


class Collected:
    """The records of the whole run, in the main process; with a test run twice, the last one counts."""

    def __init__(self) -> None:
        self.records: dict[str, dict[str, Any]] = {}
        self.notes: list[str] = []

    def add(self, record: dict[str, Any]) -> None:
        self.records.pop(record["nodeid"], None)
        self.records[record["nodeid"]] = record

    def conclude(
        self, settings: Settings, baseline: BaselineOfRun | None, root: Path, interrupted: bool
    ) -> None:
        """Write the files that were asked for; what there is to say about them goes into the summary."""
        if settings.json is not None:
            self._write(settings.json, lambda: json.dumps(self._document(), indent=1) + "\n")
        if settings.sarif is not None:
            self._write(settings.sarif, lambda: json.dumps(self._sarif(), indent=1) + "\n")
        if settings.html is not None:
            self._write(settings.html, lambda: self._page(root))
        if baseline is not None:
            self.notes += baseline.conclude(self.records.values(), interrupted)

    def _write(self, path: Path, text: Callable[[], str]) -> None:
        try:
            files.write(path, text())
        except OSError as error:
            self.notes.append(f"cannot write {path}: {error.strerror or error}")
        except Exception as error:  # a mistake of ours must not cost the other reports, or the run
            self.notes.append(f"cannot make {path}: {type(error).__name__}: {error}")

    def _document(self) -> dict[str, Any]:
        return {
            "schema": 1,
            "torch": _torch_version(),
            "pytest_inplace": __version__,
            "tests": [self.records[nodeid] for nodeid in sorted(self.records)],
        }

    def _sarif(self) -> dict[str, Any]:
        from pytest_inplace.reports import sarif

        return sarif.document(self.records.values(), __version__, pages())

    def _page(self, root: Path) -> str:
        from pytest_inplace.reports.page import build

        about = {"pytest-inplace": __version__, "torch": _torch_version() or "not installed"}
        return build.page(self.records.values(), about, str(root))

    def summary(self, verbosity: int) -> list[Line]:
        """The end of the run: how much was checked, what was found, what could not be checked."""
        records = list(self.records.values())
        about_parity: list[Line] = [[(line, "plain")] for line in parity_lines(records)]
        return summary(records, self.notes, verbosity) + about_parity


def add_junit_properties(report: pytest.TestReport, config: pytest.Config, findings: list[Finding]) -> None:
    """What a junit file says of a test besides its outcome, where one is written."""
    if config.getoption("xmlpath", None):
        report.user_properties += snippets.junit_properties(findings)


def add_html_extras(
    report: pytest.TestReport, config: pytest.Config, findings: list[Finding], page: Path | None
) -> None:
    """What pytest-html shows below a test, where it writes a page; with a link to our own, if any."""
    written = config.getoption("htmlpath", None)
    if findings and written and config.pluginmanager.hasplugin("html"):
        link = None if page is None else _link(page, Path(config.invocation_params.dir, written).parent)
        content = "".join(snippets.html_extra(f, link) for f in findings)
        extra = {
            "name": None,
            "format_type": "html",
            "content": content,
            "mime_type": None,
            "extension": None,
        }
        report.extras = [*getattr(report, "extras", ()), extra]  # type: ignore[attr-defined]


def _link(page: Path, folder: Path) -> str:
    try:
        return quote(Path(os.path.relpath(page, folder)).as_posix())
    except ValueError:  # another drive
        return page.as_uri()


def _torch_version() -> str | None:
    import sys
    from importlib import metadata

    module = sys.modules.get("torch")
    if module is not None:
        return str(module.__version__).partition("+")[0]
    try:
        return metadata.version("torch").partition("+")[0]
    except metadata.PackageNotFoundError:
        return None


def attach_record(target: pytest.TestReport, data: dict[str, Any]) -> None:
    """Let the record travel with the report, also from an xdist worker to the main process."""
    target.inplace = data  # type: ignore[attr-defined]
