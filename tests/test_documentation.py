"""The documentation cannot rot: its code runs, and does what its comments say; its tables are complete."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass, field
from typing import Any
from xml.etree import ElementTree

import pytest

from docs_build.reference import Options
from pytest_inplace.reports.findings import RULES
from tests.documentation.blocks import PAGES, Block, blocks

TESTS = [block for block in blocks() if block.is_test]
PROGRAMS = [block for block in blocks() if not block.is_test]


@dataclass
class Outcome:
    """What came of the tests in one block."""

    passed: int = 0
    failed: int = 0
    findings: list[dict[str, Any]] = field(default_factory=list)


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Outcome]:
    """All blocks with tests in one run: each is a module of its own."""
    folder = tmp_path_factory.mktemp("blocks")
    for block in TESTS:
        (folder / f"test_{block.name}.py").write_text(block.code, encoding="utf-8")
    (folder / "pytest.ini").write_text("[pytest]\naddopts = --import-mode=importlib --strict-markers\n")
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    command = [sys.executable, "-m", "pytest", "--inplace-check", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--inplace-json=out.json", "--junitxml=junit.xml"],
        cwd=folder, env={**environment, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    found = {block.name: Outcome() for block in TESTS}
    for case in ElementTree.parse(folder / "junit.xml").iter("testcase"):
        outcome = found[case.attrib["classname"].partition(".")[0].removeprefix("test_")]
        if any(child.tag in ("failure", "error") for child in case):
            outcome.failed += 1
        elif not any(child.tag == "skipped" for child in case):
            outcome.passed += 1
    for test in json.loads((folder / "out.json").read_text("utf-8"))["tests"]:
        name = test["nodeid"].partition(".py::")[0].removeprefix("test_")
        found[name].findings += test["findings"]
    return found


@pytest.mark.parametrize("block", TESTS, ids=lambda block: block.name)
def test_code_block_does_what_its_comments_say(block: Block, outcomes: dict[str, Outcome]) -> None:
    outcome = outcomes[block.name]
    found = {(f["code"], f["modified"] and f["modified"]["line"]) for f in outcome.findings}
    assert found == set(block.expected)
    if block.saved_line is not None:
        assert {f["saved"]["line"] for f in outcome.findings} == {block.saved_line}
    wrong = 1 if block.expected else 0
    right = len(re.findall(r"^ *def test_", block.code, re.M)) - wrong
    assert (outcome.passed, outcome.failed) == (right, wrong)


@pytest.mark.parametrize("block", PROGRAMS, ids=lambda block: block.name)
def test_program_runs(block: Block, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(program=block.code)
    assert pytester.runpython(pytester.path / "program.py").ret == 0


def test_readme_lists_every_rule() -> None:
    text = PAGES[0].read_text("utf-8")
    for rule in RULES:
        assert f"| {rule.code} | {rule.name} |" in text


def test_readme_lists_every_option() -> None:
    text = PAGES[0].read_text("utf-8")
    declared = Options()
    assert declared.options
    for flag, _ in declared.options:
        assert f"`{flag}" in text
    for key in declared.ini:
        assert f"`{key}`" in text


def test_options_that_the_documentation_names_exist() -> None:
    known = {flag for flag, _ in Options().options}
    for page in PAGES:
        named = set(re.findall(r"--inplace-[a-z]+(?:-[a-z]+)*", page.read_text("utf-8")))
        assert named <= known, f"{page.name}: {sorted(named - known)}"
