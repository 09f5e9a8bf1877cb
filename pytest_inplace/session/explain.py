"""``--inplace-explain=RULE``: the page about a rule, which comes with the plugin."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_inplace.reports.findings import rule_for

_PACKAGE = Path(__file__).resolve().parent.parent
# As installed, and as in a checkout, where the pages lie with the other documentation.
_FOLDERS = (_PACKAGE / "rules", _PACKAGE.parent / "docs" / "rules")


def explain(key: str) -> str:
    """The page about the rule with this code or name.

    Raises:
        pytest.UsageError: if there is no such rule, or its page is not there.
    """
    try:
        code = rule_for(key.upper() if key.upper().startswith("INP") else key).code
    except KeyError as error:
        raise pytest.UsageError(f"--inplace-explain: {error.args[0]}") from None
    for folder in _FOLDERS:
        page = folder / f"{code}.md"
        if page.is_file():
            return page.read_text(encoding="utf-8")
    raise pytest.UsageError(f"--inplace-explain: the page about {code} is not installed")


def pages() -> dict[str, str]:
    """The pages that are there, by code."""
    return {
        path.stem: path.read_text(encoding="utf-8")
        for folder in reversed(_FOLDERS)
        for path in sorted(folder.glob("INP*.md"))
    }
