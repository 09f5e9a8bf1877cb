"""The documentation cannot rot: its code runs, its tables are complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pytest_inplace.reports.findings import RULES

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("**/*.md"))]


def python_blocks() -> list[tuple[str, str]]:
    found = []
    for page in PAGES:
        for i, block in enumerate(re.findall(r"^```python\n(.*?)^```", page.read_text("utf-8"), re.M | re.S)):
            found.append((f"{page.stem}-{i}", block))
    return found


@pytest.mark.parametrize(("name", "block"), python_blocks(), ids=[name for name, _ in python_blocks()])
def test_code_block_runs(name: str, block: str, pytester: pytest.Pytester) -> None:
    if "def test_" in block:
        pytester.makepyfile(block)
        pytester.runpytest_inprocess("--inplace-check", "--strict-markers").assert_outcomes(passed=1)
    else:
        pytester.makepyfile(program=block)
        assert pytester.runpython(pytester.path / "program.py").ret == 0


def test_readme_lists_every_rule() -> None:
    text = PAGES[0].read_text("utf-8")
    for rule in RULES:
        assert f"| {rule.code} | {rule.name} |" in text


def test_readme_lists_every_option(pytester: pytest.Pytester) -> None:
    text = PAGES[0].read_text("utf-8")
    help_text = pytester.runpytest_inprocess("--help").stdout.str()
    options = set(re.findall(r"--inplace-[a-z]+(?:-[a-z]+)*", help_text))
    assert options
    for option in options:
        assert f"`{option}" in text
        assert f"`{option.removeprefix('--').replace('-', '_')}`" in text
