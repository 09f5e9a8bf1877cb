"""What a checked test comes out as: its own outcome where it is right, else a failure that explains."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import pytest

from tests.integration.support import (
    CLEAN,
    HEAD,
    LATENT,
    SILENT,
    VERSION,
    VERSION_WORDS,
    function,
    line_of,
    read_json,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.conftest import Check

    Plain = Callable[..., pytest.RunResult]

LOG = """
from pathlib import Path

def log(word):
    with Path("log.txt").open("a") as f:
        f.write(word + " ")
"""


def logged(pytester: pytest.Pytester) -> list[str]:
    return (pytester.path / "log.txt").read_text().split()


# -- PyTorch's own error, and silence -----------------------------------------------------------------------


def test_version_error_keeps_pytorchs_words_and_gets_an_explanation(
    check: Check, plain: Plain, pytester: pytest.Pytester
) -> None:
    run = check(function("test_version", VERSION))
    run.outcomes(failed=1)
    assert run.result.ret == pytest.ExitCode.TESTS_FAILED
    words = re.findall(r"^E +(\w+Error: .*)$", run.text, re.MULTILINE)
    assert words == re.findall(r"^E +(\w+Error: .*)$", plain().stdout.str(), re.MULTILINE)
    assert words[0].startswith(f"RuntimeError: {VERSION_WORDS}: [torch.FloatTensor [3]]")
    assert len(re.findall(r"^-+ inplace: INP101 -+$", run.text, re.MULTILINE)) == 1
    finding = run.finding()
    source = pytester.path / "test_it.py"
    assert (finding["code"], finding["state"], finding["replayed"]) == ("INP101", "confirmed", True)
    assert finding["modified"]["line"] == line_of(source, "# the write")
    assert finding["used"]["line"] == line_of(source, "# the use")
    assert f"RuntimeError: {finding['raised']}" == words[0]


def test_silent_corruption_fails_though_it_passes_without_the_plugin(
    check: Check, plain: Plain, pytester: pytest.Pytester
) -> None:
    run = check(function("test_silent", SILENT))
    run.outcomes(failed=1)
    plain().assert_outcomes(passed=1)
    finding = run.finding()
    source = pytester.path / "test_it.py"
    assert (finding["code"], finding["state"], finding["replayed"]) == ("INP102", "confirmed", True)
    assert (finding["modified"]["line"], finding["modified"]["exact"]) == (
        line_of(source, "# the write"),
        True,
    )
    run.result.stdout.fnmatch_lines(
        [
            f"test_it.py:{line_of(source, '# the write')}: overwritten, in test_silent",
            "E   INP102 saved-tensor-modified-silently: h f32[[]3] was overwritten after autograd "
            "had saved it; 1 of 1 gradients are wrong, 100% off",
            "E   to see it again: pytest 'test_it.py::test_silent' --inplace-check",
            "FAILED test_it.py::test_silent - INP102 saved-tensor-modified-silently: *",
        ]
    )
    run.result.stdout.no_fnmatch_line("*plugin.py*")


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(
            "w = torch.ones(3, requires_grad=True)\nh = w.exp()\nh.add_(1)\n"
            "with pytest.raises(RuntimeError, match='modified by an inplace operation'):\n"
            "    h.sum().backward()",
            id="pytest.raises",
        ),
        pytest.param(
            "w = torch.ones(3, requires_grad=True)\nh = w.exp()\nh.add_(1)\n"
            "try:\n    h.sum().backward()\nexcept RuntimeError:\n    pass",
            id="try-except",
        ),
        pytest.param(
            "w = torch.ones(3, requires_grad=True)\n"
            "with pytest.raises(RuntimeError, match='leaf Variable'):\n"
            "    w.add_(1)",
            id="leaf",
        ),
    ],
)
def test_an_error_that_the_test_expects_is_clean(check: Check, body: str) -> None:
    run = check(function("test_handled", body))
    run.outcomes(passed=1)
    assert run.verdict() == "clean"
    assert run.record()["findings"] == []


def test_an_error_raised_while_handling_the_version_error_is_still_explained(check: Check) -> None:
    body = VERSION.replace(
        "h.sum().backward()  # the use",
        "try:\n    h.sum().backward()\nexcept RuntimeError as e:\n    raise ValueError('mine') from e",
    )
    run = check(function("test_wrapped", body))
    run.outcomes(failed=1)
    run.result.stdout.fnmatch_lines(["E*ValueError: mine", "*- inplace: INP101 -*"])


def test_own_assertion_failure_stays_and_our_section_is_added(check: Check) -> None:
    run = check(function("test_both", SILENT + "assert w.grad.sum() == 0, 'my own words'"))
    run.outcomes(failed=1)
    assert run.codes() == ["INP102"]
    run.result.stdout.fnmatch_lines(
        [
            "E*AssertionError: my own words",
            "*- inplace: INP102 -*",
            "FAILED test_it.py::test_both - AssertionError: my own *",
        ]
    )


def test_latent_corruption_before_an_own_failure_is_not_reported(check: Check) -> None:
    """A test that stopped half-way left graphs unused for a reason of its own."""
    run = check(function("test_both", LATENT + "assert False, 'my own words'"))
    run.outcomes(failed=1)
    assert run.codes() == []
    run.result.stdout.no_fnmatch_line("*INP101*")


@pytest.mark.parametrize("style", ["long", "short", "line", "native", "no", "auto"])
def test_every_traceback_style_shows_the_finding(check: Check, style: str) -> None:
    run = check(function("test_silent", SILENT), f"--tb={style}")
    run.outcomes(failed=1)
    assert run.text.count("INP102 saved-tensor-modified-silently") >= 2 - (style == "no")
    run.result.stdout.no_fnmatch_line("*INTERNALERROR*")


# -- xfail and skip -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "body", "outcome"),
    [
        ("", SILENT, "xfailed"),
        ("strict=True", SILENT, "xfailed"),
        ("raises=AssertionError", SILENT, "xfailed"),
        ("raises=RuntimeError", SILENT, "failed"),
        ("raises=RuntimeError", VERSION, "xfailed"),
        ("raises=ValueError", VERSION, "failed"),
        ("", CLEAN, "xpassed"),
        ("strict=True", CLEAN, "failed"),
        ("run=False", SILENT, "xfailed"),
    ],
)
def test_xfail(check: Check, arguments: str, body: str, outcome: str) -> None:
    run = check(
        function("test_x", body, before=f"@pytest.mark.xfail({arguments})"), "-o", "xfail_strict=false"
    )
    run.outcomes(**{outcome: 1})


def test_imperative_xfail_is_not_turned_into_a_failure(check: Check) -> None:
    run = check(function("test_x", SILENT + "pytest.xfail('known')"))
    run.outcomes(xfailed=1)


@pytest.mark.parametrize("body", [LATENT, CLEAN, SILENT], ids=["latent", "clean", "silent"])
def test_skip_in_the_body_stays_a_skip(check: Check, body: str) -> None:
    run = check(function("test_skipped", body + "pytest.skip('not here')"))
    run.outcomes(skipped=1)
    assert run.result.ret == pytest.ExitCode.OK


def test_skip_mark_is_no_claim_that_the_test_was_checked(check: Check) -> None:
    run = check(
        function("test_skipped", SILENT, before="@pytest.mark.skip(reason='no')") + function("test_ok", CLEAN)
    )
    run.outcomes(skipped=1, passed=1)
    run.result.stdout.fnmatch_lines(["1 test checked, *"])
    assert [t["nodeid"] for t in run.document["tests"] if t["verdict"] == "clean"] == ["test_it.py::test_ok"]


# -- stopping early, running again --------------------------------------------------------------------------


def test_exitfirst_and_maxfail_count_findings(check: Check) -> None:
    source = "".join(function(f"test_{i}", SILENT) for i in range(3))
    check(source, "-x").outcomes(failed=1)
    run = check(source, "--maxfail=2")
    run.outcomes(failed=2)
    assert run.nodeids == ["test_it.py::test_0", "test_it.py::test_1"]


def test_last_failed_reruns_the_finding_only(check: Check) -> None:
    source = function("test_good", CLEAN) + function("test_bad", SILENT)
    check(source).outcomes(failed=1, passed=1)
    run = check(source, "--lf")
    run.outcomes(failed=1)
    assert run.nodeids == ["test_it.py::test_bad"]


# -- unittest -----------------------------------------------------------------------------------------------


UNITTEST = (
    LOG
    + """
import unittest

class TestIt(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        log("class")

    def setUp(self):
        log("setUp")
        assert not hasattr(self, "w")
        self.w = torch.ones(3, requires_grad=True)

    def tearDown(self):
        log("tearDown")

    def test_silent(self):
        log("test")
        h = self.w.exp()
        h.data.mul_(2)  # the write
        h.sum().backward()
"""
)


def test_unittest_silent_corruption_fails_and_the_replay_runs_setup_and_teardown(
    check: Check, plain: Plain, pytester: pytest.Pytester
) -> None:
    run = check(UNITTEST)
    run.outcomes(failed=1)
    assert logged(pytester) == ["class", "setUp", "test", "tearDown", "setUp", "test", "tearDown"]
    finding = run.finding()
    assert (finding["code"], finding["replayed"]) == ("INP102", True)
    assert finding["modified"]["line"] == line_of(pytester.path / "test_it.py", "# the write")
    plain().assert_outcomes(passed=1)


def test_unittest_version_error_is_explained(check: Check, pytester: pytest.Pytester) -> None:
    run = check(UNITTEST.replace("h.data.mul_(2)", "h.mul_(2)"))
    run.outcomes(failed=1)
    run.result.stdout.fnmatch_lines([f"E*RuntimeError: {VERSION_WORDS}*", "*- inplace: INP101 -*"])
    assert run.finding()["modified"]["line"] == line_of(pytester.path / "test_it.py", "# the write")


@pytest.mark.parametrize(
    ("decorator", "last", "outcome"),
    [
        ("@unittest.skip('no')", "pass", "skipped"),
        ("", "self.skipTest('not here')", "skipped"),
        ("@unittest.expectedFailure", "self.fail('known')", "xfailed"),
    ],
)
def test_unittest_skips_and_expected_failures_stay(
    check: Check, decorator: str, last: str, outcome: str
) -> None:
    source = UNITTEST.replace("    def test_silent", f"    {decorator}\n    def test_silent")
    run = check(source + f"        {last}\n")
    run.outcomes(**{outcome: 1})


# -- parametrised tests, classes, wider fixtures ------------------------------------------------------------


def test_only_the_parameter_that_corrupts_fails(check: Check) -> None:
    source = """
@pytest.mark.parametrize("factor", [1.0, 2.0])
def test_p(factor):
    w = torch.ones(3, requires_grad=True)
    h = w.exp()
    h.data.mul_(factor)
    h.sum().backward()
"""
    run = check(source)
    run.outcomes(failed=1, passed=1)
    assert [(t["nodeid"], t["verdict"]) for t in run.document["tests"]] == [
        ("test_it.py::test_p[1.0]", "clean"),
        ("test_it.py::test_p[2.0]", "finding"),
    ]


def test_replay_of_a_method_gets_a_fresh_instance(check: Check) -> None:
    source = """
class TestIt:
    def test_silent(self):
        assert not hasattr(self, "seen")
        self.seen = True
        w = torch.ones(3, requires_grad=True)
        h = w.exp()
        h.data.mul_(2)
        h.sum().backward()
"""
    run = check(source)
    run.outcomes(failed=1)
    assert run.finding()["replayed"] is True
    assert run.finding()["note"] is None


def test_wider_fixtures_are_set_up_once_and_function_fixtures_for_each_run(
    check: Check, pytester: pytest.Pytester
) -> None:
    source = (
        LOG
        + """
@pytest.fixture(scope="module")
def module():
    log("+module")
    yield
    log("-module")

@pytest.fixture(scope="class")
def klass(module):
    log("+class")
    yield
    log("-class")

@pytest.fixture
def outer(klass):
    log("+outer")
    yield
    log("-outer")

@pytest.fixture
def inner(outer):
    log("+inner")
    yield torch.ones(3, requires_grad=True)
    log("-inner")

class TestIt:
    def test_silent(self, inner):
        log("test")
        h = inner.exp()
        h.data.mul_(2)
        h.sum().backward()

    def test_next(self, outer):
        log("next")
"""
    )
    run = check(source)
    run.outcomes(failed=1, passed=1)
    one = ["+outer", "+inner", "test", "-inner", "-outer"]
    assert logged(pytester) == [
        "+module", "+class", *one, *one, "+outer", "next", "-outer", "-class", "-module",
    ]  # fmt: skip


def test_funcargs_of_the_first_run_are_there_for_reporting_hooks(check: Check) -> None:
    """Plugins that take a picture of a failure look into item.funcargs while the report is made."""
    conftest = """
import pytest

@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "call":
        report.sections.append(("seen", f"number={item.funcargs['number']}"))
    return report
"""
    source = "COUNT = []\n@pytest.fixture\ndef number():\n    COUNT.append(1)\n    return len(COUNT)\n"
    run = check(source + function("test_silent", SILENT, "number"), conftest=conftest)
    run.outcomes(failed=1)
    run.result.stdout.fnmatch_lines(["number=1"])


# -- defects in fixtures ------------------------------------------------------------------------------------


def _fixture(setup: str, teardown: str = "pass", scope: str = "function") -> str:
    return function(
        "fix", f"{setup.strip()}\nyield w\n{teardown.strip()}", before=f"@pytest.fixture(scope={scope!r})"
    )


def test_silent_defect_in_set_up_fails_the_test(check: Check, pytester: pytest.Pytester) -> None:
    run = check(_fixture(SILENT) + function("test_user", "pass", "fix"))
    run.outcomes(failed=1)
    assert (run.codes(), run.finding()["replayed"]) == (["INP102"], True)
    assert run.finding()["modified"]["line"] == line_of(pytester.path / "test_it.py", "# the write")


def test_version_error_in_set_up_is_an_error_with_the_explanation(
    check: Check, pytester: pytest.Pytester
) -> None:
    run = check(_fixture(VERSION) + function("test_user", "pass", "tmp_path, fix"))
    run.outcomes(errors=1)
    run.result.stdout.fnmatch_lines([f"E*RuntimeError: {VERSION_WORDS}*", "*- inplace: INP101 -*"])
    assert (run.codes(), run.finding()["replayed"]) == (["INP101"], True)
    assert run.finding()["modified"]["line"] == line_of(pytester.path / "test_it.py", "# the write")


def test_version_error_in_a_module_fixture_is_an_error_for_each_user(check: Check) -> None:
    source = (
        _fixture(VERSION, scope="module")
        + function("test_a", "pass", "fix")
        + function("test_b", "pass", "fix")
    )
    run = check(source)
    run.outcomes(errors=2)
    assert run.codes("test_a") == ["INP101"]
    # The module's fixture is not set up again, which must be said rather than guessed over.
    assert run.finding("test_a")["replayed"] is False
    assert run.finding("test_a")["note"]


def test_silent_defect_in_tear_down_is_an_error(check: Check, pytester: pytest.Pytester) -> None:
    source = _fixture("w = 1", SILENT) + function("test_user", "pass", "fix") + function("test_after", "pass")
    run = check(source)
    run.outcomes(passed=2, errors=1)
    run.result.stdout.fnmatch_lines(
        ["ERROR test_it.py::test_user - INP102 saved-tensor-modified-silently: *"]
    )
    assert (run.codes("test_user"), run.finding("test_user")["replayed"]) == (["INP102"], True)
    assert run.finding("test_user")["modified"]["line"] == line_of(
        pytester.path / "test_it.py", "# the write"
    )


def test_defect_in_the_last_tear_down_is_replayed_too(check: Check, pytester: pytest.Pytester) -> None:
    """The test's own fixtures are torn down while those of its module are still there for a second run."""
    run = check(_fixture("w = 1", SILENT) + function("test_user", "pass", "fix"))
    run.outcomes(passed=1, errors=1)
    assert (run.codes(), run.finding()["replayed"]) == (["INP102"], True)
    assert run.finding()["modified"]["line"] == line_of(pytester.path / "test_it.py", "# the write")


def test_defect_in_the_tear_down_of_a_module_stands_without_a_replay(check: Check) -> None:
    run = check(_fixture("w = 1", SILENT, scope="module") + function("test_user", "pass", "fix"))
    run.outcomes(passed=1, errors=1)
    assert run.codes() == ["INP102"]
    assert "already torn down" in run.finding()["note"]


def test_version_error_in_tear_down_is_explained(check: Check) -> None:
    run = check(
        _fixture("w = 1", VERSION) + function("test_user", "pass", "fix") + function("test_after", "pass")
    )
    run.outcomes(passed=2, errors=1)
    run.result.stdout.fnmatch_lines([f"E*RuntimeError: {VERSION_WORDS}*", "*- inplace: INP101 -*"])


def test_a_tear_down_error_is_reported_once_and_in_its_own_phase(
    check: Check, pytester: pytest.Pytester
) -> None:
    source = (
        LOG
        + _fixture("w = 1", "log('torn')\nraise OSError('disk gone')")
        + function("test_silent", SILENT, "fix")
    )
    run = check(source)
    run.outcomes(failed=1, errors=1)
    run.result.stdout.fnmatch_lines(["*ERROR at teardown of test_silent*", "E*OSError: disk gone"])
    assert run.text.count("OSError: disk gone\n") == 1 + run.text.count("- OSError: disk gone\n")
    assert logged(pytester) == ["torn", "torn"]


def test_tear_down_errors_of_the_test_and_of_its_module_are_both_reported(check: Check, plain: Plain) -> None:
    source = (
        function("wide", "yield\nraise OSError('wide gone')", before="@pytest.fixture(scope='module')")
        + function("near", "yield\nraise OSError('near gone')", "wide", before="@pytest.fixture")
        + function("test_silent", SILENT, "near")
    )
    run = check(source)
    run.outcomes(failed=1, errors=1)
    for text in (run.text, plain().stdout.str()):
        assert "OSError: near gone" in text
        assert "OSError: wide gone" in text


# -- fixtures of pytest's own in the second run -------------------------------------------------------------


def test_pytests_own_fixtures_are_fresh_in_the_replay(check: Check, pytester: pytest.Pytester) -> None:
    source = (
        LOG
        + """
import logging, os, warnings

def test_silent(capsys, caplog, recwarn, monkeypatch, tmp_path, request):
    here = os.getcwd()
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("x")
    assert "INPLACE_TRIAL" not in os.environ
    monkeypatch.setenv("INPLACE_TRIAL", "1")
    monkeypatch.chdir(tmp_path)
    print("printed")
    assert capsys.readouterr().out == "printed\\n"
    caplog.set_level(logging.INFO)
    logging.getLogger("a").info("told")
    assert caplog.messages == ["told"]
    assert [r.message for r in caplog.get_records("call")] == ["told"]
    warnings.warn("careful")
    assert [str(w.message) for w in recwarn] == ["careful"]
    with pytest.warns(UserWarning, match="again"):
        warnings.warn("again")
    w = torch.ones(3, requires_grad=True)
    h = w.exp()
    h.data.mul_(2)
    h.sum().backward()
    monkeypatch.chdir(here)
    log("end")
"""
    )
    run = check(source)
    run.outcomes(failed=1)
    assert run.finding()["replayed"] is True
    assert logged(pytester) == ["end", "end"]


def test_capfd_and_capsysbinary_are_fresh_too(check: Check, pytester: pytest.Pytester) -> None:
    body = "print('first')\nassert {0}.readouterr().out == {1}\nlog('end')\nprint('rest')\n"
    source = LOG + function("test_fd", body.format("capfd", "'first\\n'") + SILENT, "capfd")
    source += function("test_binary", body.format("capsysbinary", "b'first\\n'") + SILENT, "capsysbinary")
    run = check(source)
    run.outcomes(failed=2)
    assert [run.finding(n)["replayed"] for n in ("test_fd", "test_binary")] == [True, True]
    assert logged(pytester) == ["end"] * 4
    assert run.text.count("\nrest\n") == 2


# -- output is shown once -----------------------------------------------------------------------------------

OUTPUT = """
import logging, os, sys, warnings
from sys import stdout

@pytest.fixture
def fix():
    print("from set-up")
    yield
    print("from tear-down")

def test_silent(fix):
    print("from print")
    print("to stderr", file=sys.stderr)
    os.write(1, b"from the descriptor\\n")
    stdout.write("from a kept stream\\n")
    logging.getLogger("x").warning("from logging")
    warnings.warn("from warnings")
    w = torch.ones(3, requires_grad=True)
    h = w.exp()
    h.data.mul_(2)
    h.sum().backward()
"""
OUTPUT_LINES = ("from set-up", "from tear-down", "from print", "to stderr", "from the descriptor")


@pytest.mark.parametrize("capture", ["fd", "sys"])
def test_captured_output_is_shown_once(check: Check, capture: str) -> None:
    run = check(OUTPUT, f"--capture={capture}", "-rA")
    run.outcomes(failed=1)
    expected = [line for line in OUTPUT_LINES if capture == "fd" or line != "from the descriptor"]
    lines = run.text.splitlines()
    assert {line: lines.count(line) for line in expected} == dict.fromkeys(expected, 1)
    assert len([line for line in lines if line.endswith("from logging")]) == 1
    assert run.text.count("UserWarning: from warnings") == 1
    headings = [re.sub(r"[- ]+", " ", line).strip() for line in lines if re.match(r"-+ Captured", line)]
    assert sorted(headings) == sorted(set(headings))


def test_output_to_a_stream_that_was_kept_from_before_is_shown_once(check: Check) -> None:
    """A module that did ``from sys import stdout``, or a logging handler made at import time."""
    run = check(OUTPUT)
    run.outcomes(failed=1)
    assert run.text.splitlines().count("from a kept stream") == 1


def test_output_under_capture_no_is_not_doubled(check: Check) -> None:
    run = check(OUTPUT, "-s", "-o", "log_cli=true")
    run.outcomes(failed=1)
    text = run.text + run.result.stderr.str()
    counts = {line: text.count(line) for line in OUTPUT_LINES if line != "from the descriptor"}
    assert counts == dict.fromkeys(counts, 1)
    assert len(re.findall(r"^WARNING.*from logging", text, re.MULTILINE)) == 2  # live, and in the section


def test_sections_are_where_they_are_without_the_plugin(check: Check, plain: Plain) -> None:
    """Compared on a test that fails by itself too, so that both runs show their sections."""
    run = check(OUTPUT + "    assert False\n")
    run.outcomes(failed=1)

    def sections(text: str) -> list[str]:
        return [
            re.sub(r"-{2,}", "", line).strip() for line in text.splitlines()
            if re.match(r"-+ Captured", line) or line in OUTPUT_LINES
        ]  # fmt: skip

    assert sections(run.text) == sections(plain().stdout.str())


# -- reports that a test makes while it runs are not made twice ---------------------------------------------


def test_recorded_properties_are_not_doubled(check: Check, pytester: pytest.Pytester) -> None:
    source = function("test_silent", "record_property('loss', 3)\n" + SILENT, "record_property")
    check(source, "--junitxml=junit.xml").outcomes(failed=1)
    xml = (pytester.path / "junit.xml").read_text()
    assert xml.count('<property name="loss" value="3"') == 1
    assert xml.count("<failure") == 1
    assert "INP102 saved-tensor-modified-silently" in xml


@pytest.mark.skipif(not hasattr(pytest, "Subtests"), reason="subtests came with pytest 9")
def test_subtests_are_reported_once(check: Check, plain: Plain) -> None:
    body = "with subtests.test('sub'):\n    assert False, 'own'\n" + SILENT
    run = check(function("test_silent", body, "subtests"))
    assert plain().stdout.str().count("SUBFAILED") == run.text.count("SUBFAILED")
    assert run.codes() == ["INP102"]


@pytest.mark.skipif(not hasattr(pytest, "Subtests"), reason="subtests came with pytest 9")
def test_version_error_in_a_subtest_is_found(check: Check) -> None:
    body = "with subtests.test('sub'):\n" + "".join(f"    {line}\n" for line in VERSION.strip().splitlines())
    run = check(function("test_version", body, "subtests"))
    assert run.result.ret == pytest.ExitCode.TESTS_FAILED
    assert run.codes() == ["INP101"]


# -- state after the replay ---------------------------------------------------------------------------------


STATE = """
import json, os, random
import numpy as np
from pathlib import Path

def test_silent(tmp_path):
    torch.rand(5), random.random(), np.random.rand()
    os.environ["INPLACE_LEFT"] = os.environ["INPLACE_LEFT"] + "+"
    os.environ.pop("INPLACE_GONE", None)
    Path("sub").mkdir(exist_ok=True)
    if Path.cwd().name != "sub":
        os.chdir("sub")
    torch.set_default_dtype(torch.float64)
    w = torch.rand(3, requires_grad=True)
    h = w.exp()
    h.data.mul_(2)
    h.sum().backward()

def test_state():
    state = {
        "torch": torch.rand(3).tolist(), "random": random.random(), "numpy": np.random.rand(3).tolist(),
        "left": os.environ["INPLACE_LEFT"], "gone": "INPLACE_GONE" in os.environ, "cwd": Path.cwd().name,
        "dtype": str(torch.get_default_dtype()),
    }
    torch.set_default_dtype(torch.float32)
    os.environ["INPLACE_LEFT"] = "1"
    os.environ["INPLACE_GONE"] = "1"
    os.chdir("..")
    print("STATE", json.dumps(state))
"""
# torch.manual_seed would load dynamo, which cannot be loaded twice in one process.
SEEDED = """
import random
import numpy as np
import torch
random.seed(7)
np.random.seed(7)
torch.default_generator.manual_seed(7)
"""


def test_the_next_test_finds_the_state_that_it_finds_without_the_plugin(
    check: Check, plain: Plain, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("INPLACE_LEFT", "INPLACE_GONE"):
        monkeypatch.setenv(name, "1")
    run = check(STATE, "-rP", conftest=SEEDED)
    run.outcomes(failed=1, passed=1)
    assert run.finding("test_silent")["replayed"] is True
    with_plugin = re.findall(r"^STATE .*", run.text, re.MULTILINE)
    without = re.findall(r"^STATE .*", plain("test_it.py", "-rP").stdout.str(), re.MULTILINE)
    assert len(with_plugin) == 1
    assert with_plugin == without
    assert '"left": "1+"' in without[0]


def test_grad_mode_and_logging_level_are_what_they_are_without_the_plugin(check: Check, plain: Plain) -> None:
    source = function(
        "test_silent", SILENT + "logging.getLogger().setLevel(7)\nlogging.getLogger('own').disabled = True"
    )
    source += function(
        "test_state",
        "root, own = logging.getLogger(), logging.getLogger('own')\n"
        "handlers = [type(h).__name__ for h in root.handlers]\n"
        "print('STATE', root.level, own.disabled, handlers, torch.is_grad_enabled())\n"
        "root.setLevel(30)\nown.disabled = False",
    )
    run = check("import logging\n" + source, "-rP")
    state = re.findall(r"^STATE .*", run.text, re.MULTILINE)
    assert state == re.findall(r"^STATE .*", plain("test_it.py", "-rP").stdout.str(), re.MULTILINE)
    assert state[0].startswith("STATE 7 True")


# -- second runs that go another way ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "turn",
    [
        "raise ValueError('second')",
        "pytest.skip('second')",
        "pytest.fail('second')",
        "pytest.xfail('second')",
        "pytest.exit('second')",
        "raise SystemExit(3)",
        "raise asyncio.CancelledError",
        "return",
    ],
)
def test_the_finding_stands_when_the_second_run_goes_another_way(check: Check, turn: str) -> None:
    body = f"COUNT.append(1)\nif len(COUNT) > 1:\n    {turn}\n" + SILENT
    run = check(
        "import asyncio\nCOUNT = []\n" + function("test_silent", body) + function("test_after", "pass")
    )
    run.outcomes(failed=1, passed=1)
    finding = run.finding("test_silent")
    assert (finding["code"], finding["state"], finding["replayed"]) == ("INP102", "confirmed", False)
    assert "the second run of the test did not show it again" in finding["note"]
    assert finding["modified"] is None
    run.result.stdout.fnmatch_lines(["E   note: the second run of the test did not show it again*"])
    run.result.stdout.no_fnmatch_line("*Error: second*")


def test_a_second_set_up_that_fails_changes_nothing(check: Check) -> None:
    source = "COUNT = []\n" + function(
        "fix",
        "COUNT.append(1)\nif len(COUNT) in (2, 3):\n    raise OSError('port taken')",
        before="@pytest.fixture",
    )
    run = check(source + function("test_silent", SILENT, "fix") + function("test_after", "pass", "fix"))
    run.outcomes(failed=1, passed=1)
    assert run.finding("test_silent")["replayed"] is False
    run.result.stdout.no_fnmatch_line("*port taken*")


def test_a_second_tear_down_that_fails_changes_nothing(check: Check) -> None:
    source = "COUNT = []\n" + function(
        "fix",
        "yield\nCOUNT.append(1)\nif len(COUNT) == 2:\n    raise SystemExit('gone')",
        before="@pytest.fixture",
    )
    run = check(source + function("test_silent", SILENT, "fix") + function("test_after", "pass", "fix"))
    run.outcomes(failed=1, passed=1)
    assert run.finding("test_silent")["replayed"] is True


def test_another_defect_in_the_second_run_is_not_taken_for_the_first(check: Check) -> None:
    """Which line saves changes from run to run; the report must not mix the two."""
    source = """
COUNT = []
def test_silent():
    COUNT.append(1)
    w = torch.ones(3, requires_grad=True)
    if len(COUNT) == 1:
        h = w.exp()
    else:
        h = w.sigmoid()
    h.data.mul_(2)
    h.sum().backward()
"""
    run = check(source)
    run.outcomes(failed=1)
    assert run.finding()["replayed"] is False


def test_pytest_exit_in_the_first_run_ends_the_run_and_leaves_nothing(check: Check) -> None:
    run = check(function("test_exit", CLEAN + "pytest.exit('enough', returncode=3)"))
    assert run.result.ret == 3


def test_a_breakpoint_is_not_met_again_in_the_replay(
    check: Check, monkeypatch: pytest.MonkeyPatch, pytester: pytest.Pytester
) -> None:
    """What a second prompt prints would be discarded: the run would seem to hang."""
    stops: list[int] = []
    monkeypatch.setattr(sys, "breakpointhook", lambda *args, **kwargs: stops.append(1))
    check(function("test_silent", "breakpoint()\n" + SILENT)).outcomes(failed=1)
    assert len(stops) == 1


# -- debugger, doctest, hypothesis --------------------------------------------------------------------------


FAKE_PDB = """
class FakePdb:
    quitting = False

    def __init__(self, *args, **kwargs):
        self.skip = None
    def reset(self):
        pass
    def interaction(self, *args):
        print("FAKE PDB")
"""


def test_pdb_turns_the_replay_off_and_says_so(check: Check, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(fakepdb=FAKE_PDB)
    pytester.syspathinsert()
    run = check(function("test_silent", SILENT), "--pdb", "--pdbcls=fakepdb:FakePdb")
    run.outcomes(failed=1)
    assert (run.codes(), run.finding()["replayed"]) == (["INP102"], False)
    assert run.finding()["note"] == "not replayed: off under the debugger"
    run.result.stdout.fnmatch_lines(
        [
            "inplace: check=on, latent=error, replay=never (off under the debugger)*",
            "*not replayed: off under the debugger*",
            "FAKE PDB",
        ]
    )


def test_marker_does_not_turn_the_replay_on_under_pdb(check: Check, pytester: pytest.Pytester) -> None:
    pytester.makepyfile(fakepdb=FAKE_PDB)
    pytester.syspathinsert()
    source = function("test_silent", SILENT, before="@pytest.mark.inplace_safe(replay=True)")
    run = check(source, "--pdb", "--pdbcls=fakepdb:FakePdb")
    run.outcomes(failed=1)
    assert run.finding()["note"] == "not replayed: off under the debugger"


def test_doctests_are_checked(pytester: pytest.Pytester) -> None:
    silent = SILENT.replace("h.data.mul_", "_ = h.data.mul_")
    lines = "\n".join(f"    >>> {line}" for line in silent.strip().splitlines())
    pytester.makepyfile(mod=f'def f():\n    """\n    >>> import torch\n{lines}\n    """\n')
    result = pytester.runpytest_inprocess("--doctest-modules", "--inplace-check", "mod.py")
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["*INP102 saved-tensor-modified-silently*"])


def test_hypothesis_tests_are_checked(check: Check) -> None:
    pytest.importorskip("hypothesis")
    source = """
from hypothesis import given, settings, strategies as st

@settings(max_examples=5, deadline=None, database=None)
@given(st.integers(0, 9))
def test_silent(n):
    w = torch.ones(3, requires_grad=True)
    h = w.exp()
    h.data.mul_(2)
    h.sum().backward()
"""
    run = check(source)
    run.outcomes(failed=1)
    assert run.codes() == ["INP102"]


# -- when the plugin itself breaks --------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["begin", "_start", "conclude", "_judge", "_suspects"])
def test_an_internal_error_leaves_the_outcome_and_reports_unchecked(
    check: Check, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    from pytest_inplace.session.checking import ItemCheck

    def broken(*args: object) -> None:
        raise LookupError("the plugin broke\nsecond line")

    monkeypatch.setattr(ItemCheck, method, broken)
    run = check(function("test_silent", SILENT) + function("test_fails", "assert 0, 'mine'"))
    run.outcomes(passed=1, failed=1)
    record = run.record("test_silent")
    assert (record["verdict"], record["reason"]) == ("unchecked", "LookupError: the plugin broke")
    run.result.stdout.fnmatch_lines(
        ["E*AssertionError: mine", "not checked: test_it.py::test_silent: LookupError: the plugin broke"]
    )


def test_an_error_in_the_replay_machinery_leaves_fixtures_and_hooks_in_order(
    check: Check, monkeypatch: pytest.MonkeyPatch, pytester: pytest.Pytester
) -> None:
    from pytest_inplace.session import rerun

    def broken(*args: object, **kwargs: object) -> None:
        raise LookupError("the replay broke")

    monkeypatch.setattr(rerun, "replay", broken)
    source = LOG + _fixture("log('+')\nw = 1", "log('-')") + function("test_silent", SILENT, "fix")
    run = check(source + function("test_after", SILENT))
    assert logged(pytester) == ["+", "-"]
    run.outcomes(passed=2)
    assert [t["verdict"] for t in run.document["tests"]] == ["unchecked", "unchecked"]


def test_an_error_at_the_end_is_reported_and_stops_the_watch(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pytest_inplace.engine import watch

    def broken(self: object) -> None:
        raise LookupError("closing broke")

    monkeypatch.setattr(watch.Ledger, "close", broken)
    run = check(function("test_clean", CLEAN))
    run.outcomes(passed=1)
    assert (run.verdict(), run.record()["reason"]) == ("unchecked", "LookupError: closing broke")


def test_items_that_are_no_python_functions_are_checked(pytester: pytest.Pytester) -> None:
    body = "".join(f"        {line}\n" for line in SILENT.strip().splitlines())
    pytester.makeconftest(
        "import pytest\nimport torch\n"
        "def pytest_collect_file(parent, file_path):\n"
        "    if file_path.suffix == '.case':\n"
        "        return File.from_parent(parent, path=file_path)\n"
        "class File(pytest.File):\n"
        "    def collect(self):\n"
        "        yield Case.from_parent(self, name='case')\n"
        "class Case(pytest.Item):\n"
        f"    def runtest(self):\n{body}"
    )
    (pytester.path / "a.case").write_text("")
    result = pytester.runpytest_inprocess("--inplace-check", "--inplace-json=o.json")
    result.assert_outcomes(failed=1)
    (test,) = read_json(pytester.path / "o.json")["tests"]
    assert test["nodeid"] == "a.case::case"
    assert [(f["code"], f["replayed"]) for f in test["findings"]] == [("INP102", True)]


def test_an_interrupt_in_the_second_run_stops_the_run(pytester: pytest.Pytester) -> None:
    """The user pressed Ctrl-C: the one thing that a second run may not swallow."""
    body = "COUNT.append(1)\nif len(COUNT) > 1:\n    raise KeyboardInterrupt\n" + SILENT
    source = "COUNT = []\n" + function("test_silent", body) + function("test_after", "pass")
    pytester.makepyfile(test_it=HEAD + source)
    result = pytester.runpytest_inprocess("--inplace-check", no_reraise_ctrlc=True)
    assert result.ret == pytest.ExitCode.INTERRUPTED
    result.stdout.no_fnmatch_line("*test_after*")
