"""Findings as SARIF 2.1.0, for code scanning services and editors.

One result for each line of code that wrote (or saved, where that is not known) and rule, however many
tests show it. Columns count characters, from 1.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any
from urllib.parse import quote

from pytest_inplace.reports.baseline import key_of
from pytest_inplace.reports.findings import RULES, Site
from pytest_inplace.reports.rendering import facts, headline, places
from pytest_inplace.reports.summary import Group, group

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
ROOT = "SRCROOT"
FINGERPRINT = "pytestInplace/v1"
_SHOWN_TESTS = 100
_RULE_INDEX = {rule.code: index for index, rule in enumerate(RULES)}


def document(
    records: Iterable[dict[str, Any]], version: str, help_pages: Mapping[str, str]
) -> dict[str, Any]:
    """The whole log.

    Args:
        records: the tests of the run, as the JSON contract has them.
        version: of this plugin.
        help_pages: the page about each rule, in Markdown, by the rule's code.
    """
    records = sorted(records, key=lambda record: str(record["nodeid"]))
    groups = group(records, accepted=True)
    suppressing = any(_accepted(each) for each in groups)
    prints = _fingerprints(groups)
    return {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": _driver(version, help_pages)},
                "columnKind": "unicodeCodePoints",
                "originalUriBaseIds": {ROOT: {"description": {"text": "pytest's rootdir"}}},
                "invocations": [
                    {
                        "executionSuccessful": True,
                        "toolExecutionNotifications": [
                            _notification(r) for r in records if r["verdict"] == "unchecked"
                        ],
                    }
                ],
                "results": [
                    _result(each, each_print, suppressing)
                    for each, each_print in zip(groups, prints, strict=True)
                ],
            }
        ],
    }


def _driver(version: str, help_pages: Mapping[str, str]) -> dict[str, Any]:
    rules = []
    for rule in RULES:
        summary = _sentence(rule.summary)
        page = help_pages.get(rule.code)
        help_text = f'{summary} To allow it: @pytest.mark.inplace_safe(allow=["{rule.code}"], reason="...").'
        rules.append(
            {
                "id": rule.code,
                "name": "".join(part.capitalize() for part in rule.name.split("-")),
                "shortDescription": {"text": summary},
                "fullDescription": {"text": summary},
                "help": {"text": help_text, **({"markdown": page} if page else {})},
                "defaultConfiguration": {"level": "error"},
                "properties": {"tags": ["correctness", "pytorch", "autograd"], "precision": "very-high"},
            }
        )
    return {"name": "pytest-inplace", "version": version, "semanticVersion": version, "rules": rules}


def _sentence(text: str) -> str:
    text = text[:1].upper() + text[1:]
    return text if text.endswith(".") else f"{text}."


def _notification(record: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "level": "warning",
        "message": {"text": f"{record['nodeid']} was not checked: {record['reason']}"},
        "locations": [_file_only(record["nodeid"])],
    }


def _accepted(each: Group) -> bool:
    return all(finding.accepted for _, finding in each.findings)


def _result(each: Group, fingerprint: str, suppressing: bool) -> dict[str, Any]:
    worst, tests = each.worst, each.tests
    steps = [(verb, site, _location(site)) for verb, site in places(worst)]
    main = _location(each.site) if each.site is not None else _file_only(tests[0])
    related = [
        {**location, "id": number, "message": {"text": f"{verb}, in {site.function}"}}
        for number, (verb, site, location) in enumerate(steps, 1)
        if site is not each.site
    ]
    result: dict[str, Any] = {
        "ruleId": worst.code,
        "ruleIndex": _RULE_INDEX[worst.code],
        "kind": "fail",
        "level": "error" if worst.state == "confirmed" else "warning",
        "message": {"text": _literal([_sentence(headline(worst)), *facts(worst)], related)},
        "locations": [main],
        "relatedLocations": related,
        "partialFingerprints": {FINGERPRINT: fingerprint},
        "occurrenceCount": len(each.findings),
        "properties": {
            "state": worst.state,
            "tests": tests[:_SHOWN_TESTS],
            "testCount": len(tests),
            "relativeError": worst.relative_error,
        },
    }
    if len(steps) > 1:
        flow = [
            {
                "location": {**location, "message": {"text": f"{verb}, in {site.function}"}},
                "executionOrder": n,
            }
            for n, (verb, site, location) in enumerate(steps, 1)
        ]
        result["codeFlows"] = [{"threadFlows": [{"locations": flow}]}]
    if suppressing:
        result["suppressions"] = (
            [{"kind": "external", "status": "accepted", "justification": "in the baseline"}]
            if _accepted(each)
            else []
        )
    return result


def _literal(lines: list[str], related: list[dict[str, Any]]) -> str:
    """The message: nothing in it may be taken for a link or a placeholder; then links to the other places."""
    text = re.sub(r"\{(\d+)\}", r"{{\1}}", "\n".join(lines))
    text = re.sub(r"\](?=\()", r"\\]", text)
    for each in related:
        name = re.sub(r"([\\\[\]])", r"\\\1", each["message"]["text"])
        text += f"\n[{name}]({each['id']})"
    return text


def _fingerprints(groups: list[Group]) -> list[str]:
    """The same while the rule, the function and the line's text are; copies in one function are numbered."""
    seen: dict[str, int] = {}
    found: dict[int, str] = {}
    for index, each in sorted(enumerate(groups), key=lambda pair: pair[1].site.line if pair[1].site else 0):
        key = key_of(each.worst)
        text = "\0".join((key.rule, key.path, key.function, key.source))
        digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        seen[digest] = seen.get(digest, 0) + 1
        found[index] = f"{digest}:{seen[digest]}"
    return [found[index] for index in range(len(groups))]


def _file_only(nodeid: str) -> dict[str, Any]:
    return {"physicalLocation": {"artifactLocation": _artifact(nodeid.partition("::")[0])}}


def _location(site: Site) -> dict[str, Any]:
    function = {"fullyQualifiedName": site.qualname or site.function, "kind": "function"}
    location: dict[str, Any] = {"logicalLocations": [function]}
    if site.path.startswith("<"):  # exec'd code, a notebook's cell: there is no file to point to
        function["decoratedName"] = f"{site.path}:{site.line}"
        return location
    line = max(site.line, 1)
    region: dict[str, Any] = {"startLine": line, "endLine": line}
    if site.column is not None and site.end_column is not None and site.end_column > site.column:
        region |= {"startColumn": site.column + 1, "endColumn": site.end_column + 1}
    if site.source is not None:
        region["snippet"] = {"text": site.source}
    location["physicalLocation"] = {"artifactLocation": _artifact(site.path), "region": region}
    return location


def _artifact(path: str) -> dict[str, Any]:
    path = path.replace("\\", "/")
    if path.startswith("/"):
        return {"uri": f"file://{_quoted(path)}"}
    if re.match(r"[A-Za-z]:/", path):
        return {"uri": f"file:///{path[:2]}{_quoted(path[2:])}"}
    return {"uri": _quoted(path), "uriBaseId": ROOT}


def _quoted(path: str) -> str:
    """What a URI cannot hold as it is percent-encoded; bytes of an undecodable name as they are on disk."""
    try:
        encoded = path.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:  # no name of a file
        encoded = path.encode("utf-8", "replace")
    return quote(encoded, safe="/")
