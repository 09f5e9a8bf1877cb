"""The summary on the terminal: colours through pytest's own writer only, as long as asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from pytest_inplace.session import progress
from tests.integration.support import HEAD, SILENT, function

if TYPE_CHECKING:
    from tests.integration.conftest import Check

TESTS = function("double", "h.data.mul_(2)", "h") + "".join(
    function(f"test_{name}", SILENT.replace("h.data.mul_(2)", "double(h)")) for name in "abcde"
)


def section(text: str) -> list[str]:
    """The lines of the section that is ours."""
    lines = text.splitlines()
    start = next(i for i, line in enumerate(lines) if "= inplace =" in line)
    end = next(i for i, line in enumerate(lines) if i > start and ("====" in line or "failed in" in line))
    return lines[start + 1 : end]


@pytest.mark.parametrize(
    ("ini", "options", "expected"),
    [
        (None, (), 2),
        (None, ("-v",), 6),
        (None, ("-vv",), 7),
        (None, ("-q",), 1),
        ("2", (), 7),
        ("0", ("-vv",), 2),
        ("-1", ("-vv",), 1),
        ("auto", ("-v",), 6),
    ],
)
def test_verbosity(
    check: Check, pytester: pytest.Pytester, ini: str | None, options: tuple[str, ...], expected: int
) -> None:
    if ini is not None:
        pytester.makeini(f"[pytest]\nverbosity_inplace = {ini}\n")
    run = check(TESTS, "-rN", *options)
    lines = section(run.text)
    assert len(lines) == expected
    assert ("[5 tests]" in lines[-1 if expected < 3 else 1]) is (expected > 1)
    assert run.result.ret == 1


def test_a_wrong_verbosity_is_a_usage_error(pytester: pytest.Pytester) -> None:
    path = pytester.makeini("[pytest]\nverbosity_inplace = loud\n")
    result = pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = result.stderr.str()  # in pytest's words, or before it checked, in ours
    assert text.startswith("ERROR: ")
    assert "verbosity_inplace" in text
    assert str(path) in text


@pytest.mark.parametrize("no_colour", [False, True])
def test_colours(
    check: Check, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, no_colour: bool
) -> None:
    for name in ("PY_COLORS", "FORCE_COLOR", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("NO_COLOR" if no_colour else "FORCE_COLOR", "1")
    pytester.makepyfile(test_it=HEAD + TESTS)
    text = pytester.runpytest_inprocess("--inplace-check").stdout.str()
    assert ("\x1b[" in text) is not no_colour
    (line,) = (line for line in section(text) if "[5 tests]" in line)
    if no_colour:
        assert line.startswith("test_it.py:5: INP102 saved")
    else:
        assert line.startswith("\x1b[1mtest_it.py:5: \x1b[0m\x1b[31mINP102\x1b[0m saved")


@pytest.mark.parametrize(
    ("options", "said"),
    [(("-v",), True), ((), False), (("-v", "-s"), True), (("-v", "-o", "verbosity_inplace=0"), False)],
)
def test_a_long_second_run_is_said_to_be_under_way(
    check: Check, monkeypatch: pytest.MonkeyPatch, options: tuple[str, ...], said: bool
) -> None:
    monkeypatch.setattr(progress, "LONG", 0.0)
    run = check(function("test_it", f"print('mine')\n{SILENT}\nprint('and mine')"), *options)
    run.outcomes(failed=1)
    assert ("(inplace: again, 0 s) " in run.text) is said
    if "-s" not in options:
        assert "mine\nand mine\n" in run.text  # what the test wrote is captured as ever


def test_a_short_second_run_is_not_mentioned(check: Check) -> None:
    assert "(inplace: again" not in check(function("test_it", SILENT), "-v").text
