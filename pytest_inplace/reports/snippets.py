"""Findings inside other tools' reports: properties of a junit file, an extra of a pytest-html page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from pytest_inplace.reports.findings import Finding
from pytest_inplace.reports.rendering import headline, percent, places


def junit_properties(findings: Sequence[Finding]) -> list[tuple[str, str]]:
    """Name and value of what a build server may want to count or to link, for one test."""
    properties = []
    for finding in findings:
        properties.append(("inplace", headline(finding)))
        properties.append(("inplace_rule", finding.code))
        properties.append(("inplace_state", "accepted" if finding.accepted else finding.state))
        properties += [
            (f"inplace_{name}", f"{site.path}:{site.line}")
            for name in ("saved", "modified", "used")
            if (site := getattr(finding, name)) is not None
        ]
        if finding.relative_error is not None:
            properties.append(("inplace_relative_error", f"{finding.relative_error:.6g}"))
    return properties


def html_extra(finding: Finding, page: str | None = None) -> str:
    """One finding as a piece of HTML; ``page`` is where the whole report is, relative to this one."""
    steps = "".join(
        f"<li>{escape(verb)}: <code>{escape(site.path)}:{site.line}</code> in "
        f"<code>{escape(site.function)}</code><br><code>{escape((site.source or '').strip())}</code></li>"
        for verb, site in places(finding)
    )
    off = f" ({percent(finding.relative_error)} off)" if finding.relative_error is not None else ""
    fix = f"<p>instead: {escape(finding.fix)}</p>" if finding.fix else ""
    link = f'<p><a href="{escape(page)}">the whole report</a></p>' if page else ""
    return (
        f'<div class="inplace"><p><b>{escape(headline(finding))}</b></p>'
        f"<p>{escape(finding.state)}{escape(off)}</p><ol>{steps}</ol>{fix}{link}</div>"
    )
