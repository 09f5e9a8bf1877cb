"""Whole failure reports, word for word: a change of wording is a reviewed change.

To accept new wording, run ``python -m tests.reports`` and read the difference. The programs compute with
small whole numbers, so that the values are the same on every machine.
"""

from __future__ import annotations

import difflib
import sys

import pytest

from tests.reports.render import EXPECTED, PROGRAMS, blocks, torch_is_the_recorded_one

pytestmark = [
    pytest.mark.skipif(sys.version_info < (3, 11), reason="columns are underlined from Python 3.11 on"),
    pytest.mark.skipif(not torch_is_the_recorded_one(), reason="reports quote another torch version's words"),
]


@pytest.fixture(scope="module")
def in_one_process() -> dict[str, str]:
    return blocks([])


@pytest.fixture(scope="module")
def in_two_processes() -> dict[str, str]:
    return blocks(["-n", "2"])


@pytest.mark.parametrize("program", sorted(path.stem for path in PROGRAMS.glob("test_*.py")))
def test_report(program: str, in_one_process: dict[str, str], in_two_processes: dict[str, str]) -> None:
    expected = (EXPECTED / f"{program}.txt").read_text(encoding="utf-8")
    for found in (in_one_process[program], in_two_processes[program]):
        assert found == expected, "\n".join(difflib.unified_diff(expected.splitlines(), found.splitlines()))


def test_every_expectation_has_its_program() -> None:
    assert {p.stem for p in EXPECTED.glob("*.txt")} == {p.stem for p in PROGRAMS.glob("test_*.py")}
