"""From the first red run to a green one with a baseline, and down to zero."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.support import CLEAN, HEAD, LATENT, LEAF, SILENT, VERSION, function, read_json

if TYPE_CHECKING:
    from tests.integration.conftest import Check

WITH = "--inplace-baseline=base.json"
UPDATE = "--inplace-update-baseline"
STALE = "stale, no test shows it any more: "
ALL = function("test_clean", CLEAN) + function("test_silent", SILENT) + function("test_leaf", LEAF)


def entries(pytester: pytest.Pytester) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = read_json(pytester.path / "base.json")["findings"]
    return found


def test_update_then_green(check: Check, pytester: pytest.Pytester) -> None:
    first = check(ALL, WITH, UPDATE)
    first.outcomes(passed=3)
    assert first.result.ret == 0
    first.result.stdout.fnmatch_lines(
        ["inplace: check=on*baseline=*base.json (updating)", "base.json updated: 2 entries, 2 new, 0 removed"]
    )
    assert entries(pytester) == [
        {
            "path": "test_it.py", "function": name, "source": source, "rule": rule,
            "state": "confirmed", "tests": [f"test_it.py::{name}"],
        }
        for name, source, rule in [
            ("test_leaf", "w.data.mul_(3) # the write", "INP103"),
            ("test_silent", "h.data.mul_(2) # the write", "INP102"),
        ]
    ]  # fmt: skip
    second = check("\n\n\n# lines move\n" + ALL, WITH)
    second.outcomes(passed=3)
    second.result.stdout.fnmatch_lines(["base.json: 2 findings accepted"])
    assert second.finding("test_silent")["accepted"] == "baseline"
    assert second.verdict("test_silent") == "finding"
    assert second.verdict("test_clean") == "clean"


def test_without_the_baseline_it_fails_and_says_null(check: Check) -> None:
    run = check(function("test_it", SILENT))
    run.outcomes(failed=1)
    assert run.finding()["accepted"] is None


def test_what_is_new_fails(check: Check, pytester: pytest.Pytester) -> None:
    check(function("test_silent", SILENT), WITH, UPDATE).outcomes(passed=1)
    before = (pytester.path / "base.json").read_text()
    run = check(
        function("test_silent", SILENT) + function("test_again", SILENT) + function("test_leaf", LEAF), WITH
    )
    run.outcomes(passed=1, failed=2)
    assert (pytester.path / "base.json").read_text() == before


def test_one_line_of_two_tests_is_one_entry(check: Check, pytester: pytest.Pytester) -> None:
    shared = function("double", "h.data.mul_(2)", "h")
    body = "w = torch.ones(3, requires_grad=True)\nh = w.exp()\ndouble(h)\nh.sum().backward()"
    source = shared + function("test_a", body) + function("test_b", body)
    check(source, WITH, UPDATE).outcomes(passed=2)
    (entry,) = entries(pytester)
    assert (entry["function"], entry["tests"]) == ("double", ["test_it.py::test_a", "test_it.py::test_b"])
    check(source + function("test_c", body), WITH).outcomes(passed=3)


def test_stale_entries_are_said_then_removed(check: Check, pytester: pytest.Pytester) -> None:
    check(ALL, WITH, UPDATE).outcomes(passed=3)
    mended = ALL.replace("h.data.mul_(2)", "h = h.mul(2)")
    run = check(mended, WITH)
    run.outcomes(passed=3)
    assert f"base.json: {STALE}test_it.py: INP102 in test_silent: h.data.mul_(2) # the write" in run.text
    assert STALE not in check(mended, WITH, "-k", "not silent").text
    run = check(mended, WITH, UPDATE)
    assert "base.json updated: 1 entries, 0 new, 1 removed" in run.text
    assert [e["rule"] for e in entries(pytester)] == ["INP103"]


def test_an_entry_whose_test_was_removed_is_stale(check: Check) -> None:
    check(ALL, WITH, UPDATE).outcomes(passed=3)
    run = check(function("test_silent", SILENT), WITH)
    assert f"{STALE}test_it.py: INP103 in test_leaf" in run.text
    assert run.text.count(STALE) == 1


def test_a_skipped_test_makes_nothing_stale(check: Check) -> None:
    check(function("test_it", SILENT), WITH, UPDATE).outcomes(passed=1)
    run = check(function("test_it", "pytest.skip('not now')"), WITH)
    run.outcomes(skipped=1)
    assert STALE not in run.text


def test_latent_findings(check: Check, pytester: pytest.Pytester) -> None:
    check(function("test_it", LATENT), WITH, UPDATE).outcomes(passed=1)
    assert [e["state"] for e in entries(pytester)] == ["latent"]
    check(function("test_it", LATENT), WITH).outcomes(passed=1)
    assert "warnings summary" not in check(function("test_it", LATENT), WITH, "--inplace-latent=warn").text
    assert STALE not in check(function("test_it", LATENT), WITH, "--inplace-latent=ignore").text


def test_what_pytorch_refuses_is_explained_and_not_taken_up(check: Check, pytester: pytest.Pytester) -> None:
    run = check(function("test_it", VERSION), WITH, UPDATE)
    run.outcomes(failed=1)
    run.result.stdout.fnmatch_lines(
        ["*--- inplace: INP101 ---*", "not put into base.json, for their tests fail on their own: 1 findings"]
    )
    assert entries(pytester) == []


def test_an_explicit_question_of_a_test_is_not_taken_up(check: Check, pytester: pytest.Pytester) -> None:
    body = SILENT.replace("h.sum()", "inplace.check()\nh.sum()")
    run = check(function("test_it", body, "inplace"), WITH, UPDATE)
    run.outcomes(failed=1)
    assert entries(pytester) == []


@pytest.mark.parametrize("strict", [True, False])
def test_a_test_that_is_expected_to_fail_is_left_alone(
    check: Check, pytester: pytest.Pytester, strict: bool
) -> None:
    run = check(function("test_it", SILENT, before=f"@pytest.mark.xfail(strict={strict})"), WITH, UPDATE)
    run.outcomes(xfailed=1)
    assert entries(pytester) == []


def test_a_finding_without_source(check: Check, pytester: pytest.Pytester) -> None:
    body = f"exec(compile({SILENT!r}, '<made up>', 'exec'), {{'torch': torch}})"
    check(function("test_it", body), WITH, UPDATE).outcomes(passed=1)
    (entry,) = entries(pytester)
    assert (entry["path"], entry["function"], entry["source"]) == ("<made up>", "<module>", "")
    check(function("test_it", body), WITH).outcomes(passed=1)


def test_two_workers(pytester: pytest.Pytester) -> None:
    pytest.importorskip("xdist")
    pytester.makepyfile(test_it=HEAD + ALL, test_more=HEAD + ALL)
    sub = pytester.mkdir("elsewhere")
    options = ("-n2", "--inplace-check", "--inplace-baseline=elsewhere/base.json", "--rootdir", ".")
    pytester.runpytest_subprocess(*options, UPDATE).assert_outcomes(passed=6)
    two = (sub / "base.json").read_text(encoding="utf-8")
    assert len(json.loads(two)["findings"]) == 4
    result = pytester.runpytest_subprocess(*options)
    result.assert_outcomes(passed=6)
    result.stdout.fnmatch_lines(["elsewhere/base.json: 4 findings accepted"])
    pytester.runpytest_inprocess("--inplace-check", WITH, UPDATE).assert_outcomes(passed=6)
    assert (pytester.path / "base.json").read_text(encoding="utf-8") == two


def test_from_the_ini_file(check: Check, pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\ninplace_baseline = base.json\ninplace_update_baseline = true\n")
    check(function("test_it", SILENT)).outcomes(passed=1)
    assert len(entries(pytester)) == 1
    pytester.makeini("[pytest]\ninplace_baseline = base.json\n")
    check(function("test_it", SILENT)).outcomes(passed=1)


@pytest.mark.parametrize("update", [True, False])
@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "not JSON: Expecting value"),
        (b"\xff\xfe", "not a baseline: not UTF-8 text"),
        (b'{"schema": 1, "tests": []}', 'not a baseline: there is no "format"'),
        (b'{"format": "pytest-inplace baseline", "version": 7}', "version 7, where this release reads 1"),
    ],
)
def test_a_foreign_file_stops_the_run_and_is_kept(
    check: Check, pytester: pytest.Pytester, content: bytes, why: str, update: bool
) -> None:
    path: Path = pytester.path / "base.json"
    path.write_bytes(content)
    run = check(function("test_it", SILENT), WITH, *([UPDATE] if update else []))
    assert run.result.ret == pytest.ExitCode.USAGE_ERROR
    assert f"ERROR: --inplace-baseline: {path}: {why}" in run.result.stderr.str()
    assert path.read_bytes() == content


def test_usage_errors(check: Check, pytester: pytest.Pytester) -> None:
    test = function("test_it", SILENT)
    here = pytester.path
    for options, words in [
        ((WITH,), f"--inplace-baseline: {here / 'base.json'} does not exist; --inplace-update-baseline"),
        ((UPDATE,), "--inplace-update-baseline needs --inplace-baseline=FILE"),
        (("--inplace-baseline=.",), f"--inplace-baseline: {here}: cannot read it: Is a directory"),
        (("--inplace-baseline=test_it.py/x", UPDATE), f"--inplace-baseline: cannot write {here}/test_it.py/"),
        (("-o", "inplace_baseline=gone.json"), f"-o inplace_baseline: {here / 'gone.json'} does not exist"),
    ]:  # fmt: skip
        run = check(test, *options)
        assert run.result.ret == pytest.ExitCode.USAGE_ERROR
        assert words in run.result.stderr.str()
    assert not (pytester.path / "base.json").exists()


def test_an_interrupted_run_updates_nothing(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_it=HEAD + function("test_a", SILENT) + function("test_b", "raise KeyboardInterrupt")
    )
    result = pytester.runpytest_subprocess("--inplace-check", WITH, UPDATE)
    result.stdout.fnmatch_lines(["base.json was not updated: the run did not come to its end"])
    assert not (pytester.path / "base.json").exists()


def test_a_run_without_tests_updates_nothing(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("--inplace-check", WITH, UPDATE)
    result.stdout.fnmatch_lines(["base.json was not updated: no test was checked"])
    assert not (pytester.path / "base.json").exists()


def test_the_three_commands_of_the_page_make_a_hundred_tests_green(pytester: pytest.Pytester) -> None:
    """As a new user would, with ten old findings; the first command installs."""
    page = (Path(__file__).parents[2] / "docs/baseline.md").read_text("utf-8")
    block = re.search(r"```console\n(.*?)```", page, re.S)
    assert block
    install, *commands = [line.removeprefix("$ ") for line in block[1].splitlines()]
    assert install == "pip install pytest-inplace"
    assert len(commands) == 2
    bodies = [SILENT if i % 10 == 7 else CLEAN for i in range(100)]
    for part in range(4):
        source = "".join(function(f"test_{i}", bodies[i]) for i in range(part, 100, 4))
        (pytester.path / f"test_part_{part}.py").write_text(HEAD + source)
    pytester.runpytest_inprocess("--inplace-check").assert_outcomes(passed=90, failed=10)
    for command in commands:
        program, *options = command.split()
        assert program == "pytest"
        result = pytester.runpytest_inprocess(*options)
        result.assert_outcomes(passed=100)
        assert result.ret == 0
    new = function("test_new", SILENT)
    (pytester.path / "test_new.py").write_text(HEAD + new)
    pytester.runpytest_inprocess(*options).assert_outcomes(passed=100, failed=1)
