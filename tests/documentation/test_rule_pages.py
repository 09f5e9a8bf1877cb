"""Every rule has its page, and the page has what a reader comes for."""

from __future__ import annotations

import subprocess
import sys

import pytest

from pytest_inplace.reports.findings import RULES, Rule
from tests.documentation.blocks import DOCS, blocks

BY_NAME = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)


@BY_NAME
def test_rule_has_a_page(rule: Rule) -> None:
    text = (DOCS / "rules" / f"{rule.code}.md").read_text("utf-8")
    assert text.startswith(f"# {rule.code} {rule.name}\n")
    for heading in ("## A wrong program", "## Why ", "## The fix", "## To allow it"):
        assert heading in text


@BY_NAME
def test_page_has_a_program_with_this_finding_and_one_without(rule: Rule) -> None:
    if rule.code >= "INP300":
        pytest.skip("takes a second device")
    of_page = [b for b in blocks() if b.page.stem == rule.code and b.is_test]
    wrong = [b for b in of_page if b.heading == "A wrong program"]
    assert [[code for code, _ in b.expected] for b in wrong] == [[rule.code]]
    fixed = [b for b in of_page if b.heading == "The fix"]
    assert fixed
    assert not any(b.expected for b in fixed)


@pytest.mark.parametrize("key", ["INP102", "inp102", "saved-tensor-modified-silently"])
def test_explain_prints_the_page(key: str, pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess(f"--inplace-explain={key}")
    assert result.ret == 0
    assert (DOCS / "rules" / "INP102.md").read_text("utf-8").strip() in result.stdout.str()


def test_explain_an_unknown_rule(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("--inplace-explain=INP999")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--inplace-explain: unknown rule 'INP999'; known rules: INP101 *"])


def test_explain_imports_no_torch(pytester: pytest.Pytester) -> None:
    code = """
import sys, pytest
assert pytest.main(["--inplace-explain=INP101"]) == 0
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], cwd=pytester.path, check=True, capture_output=True)
