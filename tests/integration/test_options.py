"""Every option from every source, who overrides whom, and what a wrong value is told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.support import CLEAN, HEAD, LATENT, LEAF, SILENT, function, read_json

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.conftest import Check


def marked(body: str, arguments: str = "", name: str = "test_it") -> str:
    return function(name, body, before=f"@pytest.mark.inplace_safe({arguments})")


def ini(pytester: pytest.Pytester, *lines: str) -> Path:
    return pytester.makeini("\n".join(["[pytest]", *lines]))


# -- check --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ini_value", "flag", "marker", "checked"),
    [
        (None, False, None, False),
        (None, True, None, True),
        ("true", False, None, True),
        ("false", False, None, False),
        ("false", True, None, True),
        (None, False, "", True),
        ("false", False, "", True),
        (None, True, "check=False", False),
        ("true", False, "check=False", False),
        (None, False, "check=True", True),
        (None, False, "latent='warn'", True),
    ],
)
def test_check(
    check: Check,
    pytester: pytest.Pytester,
    ini_value: str | None,
    flag: bool,
    marker: str | None,
    checked: bool,
) -> None:
    if ini_value is not None:
        ini(pytester, f"inplace_check = {ini_value}")
    run = check(function("test_it", SILENT) if marker is None else marked(SILENT, marker), flag=flag)
    run.outcomes(**{"failed" if checked else "passed": 1})
    assert run.nodeids == (["test_it.py::test_it"] if checked else [])


def test_the_closest_marker_wins(check: Check) -> None:
    source = "pytestmark = pytest.mark.inplace_safe(check=False)\n" + function("test_module", SILENT)
    source += marked(SILENT, "", "test_function")
    source += "\n@pytest.mark.inplace_safe()\nclass TestIt:\n"
    source += "".join(f"    {line}\n" for line in function("test_class", SILENT, "self").splitlines())
    source += "".join(
        f"    {line}\n"
        for line in function(
            "test_off", SILENT, "self", "@pytest.mark.inplace_safe(check=False)"
        ).splitlines()
    )
    run = check(source)
    run.outcomes(failed=2, passed=2)
    assert run.nodeids == ["test_it.py::TestIt::test_class", "test_it.py::test_function"]


# -- latent -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ini_value", "option", "marker", "effective"),
    [
        (None, None, None, "error"),
        ("error", None, None, "error"),
        ("warn", None, None, "warn"),
        ("ignore", None, None, "ignore"),
        (None, "warn", None, "warn"),
        ("warn", "ignore", None, "ignore"),
        ("ignore", "error", None, "error"),
        ("ignore", "warn", "error", "error"),
        ("error", "error", "ignore", "ignore"),
        (None, None, "warn", "warn"),
    ],
)
def test_latent(
    check: Check,
    pytester: pytest.Pytester,
    ini_value: str | None,
    option: str | None,
    marker: str | None,
    effective: str,
) -> None:
    if ini_value is not None:
        ini(pytester, f"inplace_latent = {ini_value}")
    source = function("test_it", LATENT) if marker is None else marked(LATENT, f"latent={marker!r}")
    run = check(source, *([f"--inplace-latent={option}"] if option else []))
    run.outcomes(**{"failed" if effective == "error" else "passed": 1})
    assert run.verdict() == ("clean" if effective == "ignore" else "finding")
    warned = run.text.count("PytestInplaceWarning: INP101 saved-tensor-modified: h f32[3] was overwritten")
    assert warned == (effective == "warn")


def test_a_latent_warning_that_is_an_error_fails_the_test(check: Check) -> None:
    run = check(function("test_it", LATENT), "--inplace-latent=warn", "-W", "error")
    run.outcomes(failed=1)


def test_a_latent_warning_can_be_filtered(check: Check) -> None:
    run = check(
        function("test_it", LATENT),
        "--inplace-latent=warn",
        "-W",
        "ignore::pytest_inplace.session.checking.PytestInplaceWarning",
    )
    run.outcomes(passed=1)
    run.result.stdout.no_fnmatch_line("*warnings summary*")


def test_latent_says_nothing_about_confirmed_findings(check: Check) -> None:
    check(function("test_it", SILENT), "--inplace-latent=ignore").outcomes(failed=1)


# -- replay -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ini_value", "option", "marker", "note"),
    [
        (None, None, None, None),
        ("never", None, None, "not replayed: off by --inplace-replay=never"),
        (None, "never", None, "not replayed: off by --inplace-replay=never"),
        ("never", "auto", None, None),
        ("auto", "never", None, "not replayed: off by --inplace-replay=never"),
        (None, "never", "True", None),
        ("never", None, "'auto'", None),
        (None, None, "False", "not replayed: off by inplace_safe(replay=False)"),
        (None, "auto", "'never'", "not replayed: off by inplace_safe(replay=False)"),
    ],
)
def test_replay(
    check: Check,
    pytester: pytest.Pytester,
    ini_value: str | None,
    option: str | None,
    marker: str | None,
    note: str | None,
) -> None:
    if ini_value is not None:
        ini(pytester, f"inplace_replay = {ini_value}")
    body = "with open('runs.txt', 'a') as f:\n    f.write('x')\n" + SILENT
    source = function("test_it", body) if marker is None else marked(body, f"replay={marker}")
    run = check(source, *([f"--inplace-replay={option}"] if option else []))
    run.outcomes(failed=1)
    assert (run.finding()["replayed"], run.finding()["note"]) == (note is None, note)
    assert (pytester.path / "runs.txt").read_text() == ("xx" if note is None else "x")


# -- allow --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "allow", ["['INP102']", "'INP102'", "('saved-tensor-modified-silently',)", "['INP101', 'INP102']"]
)
def test_allow(check: Check, allow: str) -> None:
    run = check(marked(SILENT, f"allow={allow}, reason='known'"))
    run.outcomes(passed=1)
    assert run.verdict() == "clean"


def test_allow_is_for_the_named_rules_only(check: Check) -> None:
    run = check(marked(SILENT + LEAF, "allow=['INP102'], reason='known'"))
    run.outcomes(failed=1)
    assert run.codes() == ["INP103"]


def test_allow_of_class_and_function_add_up(check: Check) -> None:
    source = "pytestmark = pytest.mark.inplace_safe(allow='INP103', reason='of the module')\n"
    run = check(source + marked(SILENT + LEAF, "allow=['INP102'], reason='of the function'"))
    run.outcomes(passed=1)


def test_allow_does_not_silence_pytorchs_own_error(check: Check) -> None:
    body = LATENT + "h.sum().backward()"
    run = check(marked(body, "allow=['INP101'], reason='known'"))
    run.outcomes(failed=1)
    assert run.codes() == []
    run.result.stdout.fnmatch_lines(["E*RuntimeError: one of the variables needed*"])


# -- json path ----------------------------------------------------------------------------------------------


def test_json_on_the_command_line_counts_from_where_pytest_was_started(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    ini(pytester, "inplace_json = from_ini.json")
    pytester.makepyfile(test_it=HEAD + function("test_it", CLEAN))
    sub = pytester.mkdir("sub")
    monkeypatch.chdir(sub)
    pytester.runpytest_inprocess("..", "--inplace-check", "--inplace-json=new/out.json").assert_outcomes(
        passed=1
    )
    assert read_json(sub / "new" / "out.json")["tests"][0]["nodeid"] == "test_it.py::test_it"
    assert not (pytester.path / "from_ini.json").exists()


def test_json_in_the_ini_file_counts_from_rootdir(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    ini(pytester, "inplace_json = reports/out.json", "inplace_check = true")
    pytester.makepyfile(test_it=HEAD + function("test_it", CLEAN))
    monkeypatch.chdir(pytester.mkdir("sub"))
    pytester.runpytest_inprocess("..").assert_outcomes(passed=1)
    assert len(read_json(pytester.path / "reports" / "out.json")["tests"]) == 1


def test_json_through_a_symbolic_link_keeps_the_link(pytester: pytest.Pytester) -> None:
    """Replacing what the path names would also replace /dev/null or /dev/stdout, if permissions allow."""
    pytester.makepyfile(test_it=HEAD + function("test_it", CLEAN))
    real = pytester.path / "real.json"
    real.write_text("")
    link = pytester.path / "link.json"
    link.symlink_to(real)
    pytester.runpytest_inprocess("--inplace-check", "--inplace-json=link.json").assert_outcomes(passed=1)
    assert link.is_symlink()
    assert len(read_json(real)["tests"]) == 1


def test_json_that_cannot_be_written_in_the_end_is_said(check: Check, pytester: pytest.Pytester) -> None:
    body = "import os\nos.remove('report.json')\nos.mkdir('report.json')\n"
    pytester.makepyfile(test_it=HEAD + function("test_it", body))
    result = pytester.runpytest_inprocess("--inplace-check", "--inplace-json=report.json")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"cannot write {pytester.path / 'report.json'}: Is a directory"])


# -- wrong values -------------------------------------------------------------------------------------------


def usage_error(pytester: pytest.Pytester, *args: str) -> str:
    """The text of the usage error that a run must end with."""
    result = pytester.runpytest_inprocess(*args)
    text = result.stderr.str() + result.stdout.str()
    assert result.ret == pytest.ExitCode.USAGE_ERROR, text
    assert "INTERNALERROR" not in text
    assert "Traceback" not in text
    return text


@pytest.mark.parametrize("option", ["--inplace-latent=loud", "--inplace-replay=always"])
def test_wrong_option_value(pytester: pytest.Pytester, option: str) -> None:
    name, _, value = option.partition("=")
    text = usage_error(pytester, option)
    assert f"argument {name}: invalid choice: {value!r}" in text.replace(
        "invalid choice: " + value, f"invalid choice: {value!r}"
    )


@pytest.mark.parametrize(
    ("key", "value", "choices"),
    [("inplace_latent", "loud", "error, warn, ignore"), ("inplace_replay", "always", "auto, never")],
)
def test_wrong_ini_value(pytester: pytest.Pytester, key: str, value: str, choices: str) -> None:
    path = ini(pytester, f"{key} = {value}")
    assert f"ERROR: {key} in {path}: {value!r} is not one of {choices}" in usage_error(pytester)


def test_wrong_override_names_itself_and_not_the_file(pytester: pytest.Pytester) -> None:
    ini(pytester, "inplace_latent = warn")
    text = usage_error(pytester, "-o", "inplace_latent=loud")
    assert "ERROR: -o inplace_latent: 'loud' is not one of error, warn, ignore" in text


@pytest.mark.parametrize("value", ["perhaps", ""])
def test_wrong_boolean_in_the_ini_file(pytester: pytest.Pytester, value: str) -> None:
    ini(pytester, f"inplace_check = {value}")
    assert "inplace_check" in usage_error(pytester)


@pytest.mark.skipif(pytest.version_tuple < (9,), reason="native TOML settings came with pytest 9")
@pytest.mark.parametrize(
    "line", ["inplace_latent = 3", "inplace_check = 'perhaps'", "inplace_replay = false"]
)
def test_wrong_type_in_toml(pytester: pytest.Pytester, line: str) -> None:
    pytester.makepyprojecttoml(f"[tool.pytest]\n{line}\n")
    assert line.split()[0] in usage_error(pytester)


@pytest.mark.skipif(pytest.version_tuple < (9,), reason="native TOML settings came with pytest 9")
def test_settings_in_toml(check: Check, pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml("[tool.pytest]\ninplace_check = true\ninplace_latent = 'ignore'\n")
    run = check(function("test_it", LATENT), flag=False)
    run.outcomes(passed=1)
    assert run.nodeids == ["test_it.py::test_it"]


@pytest.mark.parametrize("source", ["command line", "ini file"])
@pytest.mark.parametrize(("path", "why"), [("folder", "Is a directory"), ("file.txt/out.json", "")])
def test_unwritable_json_path(pytester: pytest.Pytester, source: str, path: str, why: str) -> None:
    pytester.mkdir("folder")
    (pytester.path / "file.txt").write_text("")
    args, name = [f"--inplace-json={path}"], "--inplace-json"
    if source == "ini file":
        args, name = [], f"inplace_json in {ini(pytester, f'inplace_json = {path}')}"
    assert f"ERROR: {name}: cannot write {pytester.path / path}: {why}" in usage_error(pytester, *args)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (
            "True",
            "takes 0 positional arguments but 1 was given; "
            "it takes check, allow, reason, latent, replay and parity",
        ),
        (
            "checks=True",
            "unexpected keyword argument 'checks'; it takes check, allow, reason, latent, replay and parity",
        ),
        ("check='yes'", "check='yes' is not one of True, False"),
        ("check=None", "check=None is not one of True, False"),
        ("latent='loud'", "latent='loud' is not one of error, warn, ignore"),
        ("latent=['warn']", "latent=['warn'] is not one of error, warn, ignore"),
        ("latent=True", "latent=True is not one of error, warn, ignore"),
        ("replay='always'", "replay='always' is not one of True, False, auto, never"),
        ("replay=1", "replay=1 is not one of True, False, auto, never"),
        (
            "allow=['INP999'], reason='x'",
            "unknown rule 'INP999'; known rules: INP101 saved-tensor-modified, ",
        ),
        ("allow=[5], reason='x'", "unknown rule 5; known rules: INP101"),
        ("allow=5, reason='x'", "allow=5 is not a list of rules"),
        ("allow=['INP101']", "allow needs a reason=..., a text that says why"),
        ("allow=['INP101'], reason=''", "allow needs a reason=..., a text that says why"),
        ("allow=['INP101'], reason='  '", "allow needs a reason=..., a text that says why"),
        ("allow=['INP101'], reason=True", "allow needs a reason=..., a text that says why"),
    ],
)
def test_wrong_marker(pytester: pytest.Pytester, arguments: str, problem: str) -> None:
    pytester.makepyfile(test_it=HEAD + marked("pass", arguments))
    text = usage_error(pytester)
    assert "ERROR: test_it.py::test_it: @pytest.mark.inplace_safe: " in text
    assert problem in text


@pytest.mark.parametrize(
    "hook",
    [
        "def pytest_collection_modifyitems(items):",
        "@pytest.hookimpl(trylast=True)\ndef pytest_collection_modifyitems(items):",
        "def pytest_runtest_protocol(item):\n    items = [item]",
    ],
    ids=["modifyitems", "modifyitems-trylast", "protocol"],
)
def test_a_marker_that_a_hook_adds_counts(check: Check, hook: str) -> None:
    add = "\n    for item in items:\n        item.add_marker(pytest.mark.inplace_safe(check=False))\n"
    run = check(function("test_it", SILENT), conftest=f"import pytest\n{hook}{add}")
    run.outcomes(passed=1)


# -- what pytest shows of the plugin ------------------------------------------------------------------------


def test_help(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("--help")
    text = " ".join(result.stdout.str().split())
    for phrase in (
        "in-place operations that corrupt gradients:",
        "--inplace-check check every test for in-place operations that corrupt gradients "
        "(ini: inplace_check)",
        "--inplace-latent={error,warn,ignore} what to do about an overwritten saved tensor over which "
        "backward never ran: error (default), warn or ignore (ini: inplace_latent)",
        "--inplace-replay={auto,never}",
        "auto (default) or never (ini: inplace_replay)",
        "--inplace-json=FILE",
        "inplace_check (bool): check every test (see --inplace-check)",
        "inplace_latent (string): error, warn or ignore (see --inplace-latent)",
        "inplace_replay (string): auto or never (see --inplace-replay)",
        "inplace_json (string): path of the JSON report, from rootdir (see --inplace-json)",
    ):
        assert phrase in text


def test_help_writes_no_file(pytester: pytest.Pytester) -> None:
    pytester.runpytest_inprocess("--help", "--inplace-json=out.json")
    assert not (pytester.path / "out.json").exists()


def test_markers(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("--markers")
    result.stdout.fnmatch_lines(
        [
            "@pytest.mark.inplace_safe([*], check=True, allow=(), reason=None, latent=None, replay=None, "
            "parity=None): "
            "check that no in-place operation in this test corrupts a gradient, "
            "with or without --inplace-check. *"
        ]
    )


def test_fixtures(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("--fixtures", "-v")
    text = " ".join(result.stdout.str().split())
    assert "The check that watches this test for in-place operations that corrupt gradients." in text
    for method in ("allow(reason)", "raises(rule)", "check()", "frozen(*tensors_or_modules)", "findings"):
        assert method in text


@pytest.mark.parametrize(
    ("args", "line"),
    [
        ((), None),
        (("--inplace-check",), "inplace: check=on, latent=error, replay=auto"),
        (
            ("--inplace-check", "--inplace-latent=warn", "--inplace-replay=never"),
            "inplace: check=on, latent=warn, replay=never",
        ),
        (("--inplace-json=o.json",), "inplace: check=marked tests, latent=error, replay=auto, json=*o.json"),
    ],
)
def test_header(pytester: pytest.Pytester, args: tuple[str, ...], line: str | None) -> None:
    result = pytester.runpytest_inprocess(*args)
    if line is None:
        result.stdout.no_fnmatch_line("inplace:*")
    else:
        result.stdout.fnmatch_lines([line])


def test_the_marker_is_known_under_strict_markers(check: Check) -> None:
    check(marked(CLEAN), "--strict-markers", "-W", "error").outcomes(passed=1)


def test_no_inplace_removes_everything(check: Check, pytester: pytest.Pytester) -> None:
    check(function("test_it", SILENT)).outcomes(failed=1)
    pytester.runpytest_inprocess("-p", "no:inplace").assert_outcomes(passed=1)
    assert "unrecognized arguments: --inplace-check" in usage_error(
        pytester, "-p", "no:inplace", "--inplace-check"
    )
    result = pytester.runpytest_inprocess("-p", "no:inplace", "--fixtures", "--markers", "--help")
    result.stdout.no_fnmatch_line("*inplace*")
    result = pytester.runpytest_inprocess("-p", "no:inplace", "--fixtures")
    result.stdout.no_fnmatch_line("*in-place*")


def test_without_flag_or_marker_nothing_is_said(check: Check) -> None:
    run = check(function("test_it", SILENT), flag=False)
    run.outcomes(passed=1)
    run.result.stdout.no_fnmatch_line("*= inplace =*")


def test_two_reports_cannot_be_one_file(check: Check, pytester: pytest.Pytester) -> None:
    ini(pytester, "inplace_html = ./report.json")
    run = check(function("test_it", SILENT))
    assert run.result.ret == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: --inplace-json and inplace_html in " in run.result.stderr.str()
    assert " name the same file: " in run.result.stderr.str()


def test_a_report_that_cannot_be_made_costs_neither_the_run_nor_the_others(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pytest_inplace.reports import sarif

    monkeypatch.delattr(sarif, "group")
    run = check(function("test_it", SILENT), "--inplace-sarif=o.sarif")
    run.outcomes(failed=1)
    assert run.codes() == ["INP102"]
    assert "o.sarif: NameError: name 'group' is not defined" in run.text
