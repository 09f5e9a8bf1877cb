"""What a test can say to the check through the ``inplace`` fixture, and a project through the hooks."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integration.support import CLEAN, LATENT, LEAF, SILENT, VERSION, VERSION_WORDS, function, line_of

if TYPE_CHECKING:
    from tests.integration.conftest import Check


def using(body: str, name: str = "test_it") -> str:
    return function(name, body, "inplace")


def inside(block: str, body: str) -> str:
    """``body`` as the body of a ``with`` statement."""
    return f"{block}:\n" + "".join(f"    {line}\n" for line in body.strip().splitlines())


START = "w = torch.ones(3, requires_grad=True)\nh = w.exp()\n"


# -- the fixture itself -------------------------------------------------------------------------------------


def test_asking_for_the_fixture_turns_the_check_on(check: Check) -> None:
    run = check(using(SILENT), flag=False)
    run.outcomes(failed=1)
    assert (run.codes(), run.finding()["replayed"]) == (["INP102"], True)


def test_asking_through_another_fixture_counts_too(check: Check) -> None:
    source = function("mine", "return inplace", "inplace", "@pytest.fixture")
    run = check(source + function("test_it", inside("with mine.allow('mine')", SILENT), "mine"), flag=False)
    run.outcomes(passed=1)
    assert run.verdict() == "clean"


def test_the_fixture_without_the_check_is_an_error_that_says_why(check: Check) -> None:
    run = check(function("test_it", "pass", "inplace", "@pytest.mark.inplace_safe(check=False)"))
    run.outcomes(errors=1)
    run.result.stdout.fnmatch_lines(["*needs the check that inplace_safe(check=False) turned off*"])


def test_asking_for_the_fixture_late_is_an_error_that_says_how(check: Check) -> None:
    run = check(function("test_it", "request.getfixturevalue('inplace')", "request"))
    run.outcomes(failed=1)
    run.result.stdout.fnmatch_lines(["*request the fixture 'inplace' as an argument of the test*"])


def test_version_error_is_the_same_with_the_fixture(check: Check) -> None:
    run = check(using(VERSION))
    run.outcomes(failed=1)
    run.result.stdout.fnmatch_lines([f"E*RuntimeError: {VERSION_WORDS}*", "*- inplace: INP101 -*"])
    assert run.codes() == ["INP101"]


def test_handled_error_is_clean_with_the_fixture(check: Check) -> None:
    run = check(
        using(VERSION.replace("h.sum().backward()", "with pytest.raises(RuntimeError): h.sum().backward()"))
    )
    run.outcomes(passed=1)
    assert run.verdict() == "clean"


# -- allow --------------------------------------------------------------------------------------------------


def test_allow_accepts_the_writes_inside(check: Check) -> None:
    run = check(using(START + "with inplace.allow(reason='known'):\n    h.data.mul_(2)\nh.sum().backward()"))
    run.outcomes(passed=1)
    assert run.verdict() == "clean"


def test_allow_does_not_accept_the_writes_outside(check: Check, pytester: pytest.Pytester) -> None:
    body = (
        START
        + "with inplace.allow(reason='known'):\n    h.data.mul_(2)\n"
        + "h.data.mul_(3)  # outside\nh.sum().backward()"
    )
    run = check(using(body))
    run.outcomes(failed=1)
    assert run.finding()["modified"]["line"] == line_of(pytester.path / "test_it.py", "# outside")
    # What was allowed is the state that the values are compared with.
    assert run.finding()["values"]["max_abs"] == pytest.approx(4 * 2.718282, rel=1e-5)


def test_allow_does_not_accept_a_write_before_it(check: Check) -> None:
    body = START + "h.data.mul_(3)\nwith inplace.allow(reason='known'):\n    x = 1\nh.sum().backward()"
    run = check(using(body))
    run.outcomes(failed=1)
    assert run.codes() == ["INP102"]


def test_allow_covers_what_is_saved_inside_too(check: Check) -> None:
    run = check(
        using(inside("with inplace.allow(reason='known')", START + "h.data.mul_(2)") + "h.sum().backward()")
    )
    run.outcomes(passed=1)
    assert run.verdict() == "clean"


def test_allow_covers_a_backward_pass_inside_too(check: Check) -> None:
    run = check(using(inside("with inplace.allow(reason='known')", SILENT)))
    run.outcomes(passed=1)
    assert run.verdict() == "clean"


def test_allow_does_not_cover_an_earlier_write_that_a_backward_pass_inside_meets(check: Check) -> None:
    body = START + "h.data.mul_(2)\nwith inplace.allow(reason='known'):\n    h.sum().backward()"
    run = check(using(body))
    run.outcomes(failed=1)
    assert run.codes() == ["INP102"]


def test_raises_does_not_take_an_error_of_another_rule(check: Check) -> None:
    run = check(using(inside("with inplace.raises('INP102')", SILENT + VERSION)))
    run.outcomes(failed=1)
    assert run.codes() == ["INP101"]
    run.result.stdout.fnmatch_lines([f"E*RuntimeError: {VERSION_WORDS}*"])


def test_allow_does_not_silence_pytorchs_version_error(check: Check) -> None:
    run = check(using(START + "with inplace.allow(reason='known'):\n    h.mul_(2)\nh.sum().backward()"))
    run.outcomes(failed=1)
    run.result.stdout.fnmatch_lines([f"E*RuntimeError: {VERSION_WORDS}*"])


def test_allow_accepts_a_latent_write(check: Check) -> None:
    run = check(using(START + "with inplace.allow(reason='known'):\n    h.mul_(2)"))
    run.outcomes(passed=1)
    assert run.verdict() == "clean"


@pytest.mark.parametrize("arguments", ["", "reason=''", "reason='  '", "reason=None", "reason=5"])
def test_allow_without_a_reason(check: Check, arguments: str) -> None:
    run = check(using(f"with inplace.allow({arguments}):\n    pass"))
    run.outcomes(failed=1)
    run.result.stdout.fnmatch_lines(["E*TypeError:*reason*"])


# -- raises -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rule", "body"),
    [
        ("INP102", SILENT),
        ("saved-tensor-modified-silently", SILENT),
        ("INP101", VERSION),
        ("INP101", LATENT),
        ("leaf-modified", LEAF),
        ("INP104", "w = torch.ones(3, requires_grad=True)\nw.add_(1)"),
    ],
)
def test_raises_finds_what_it_expects(check: Check, rule: str, body: str) -> None:
    run = check(using(inside(f"with inplace.raises({rule!r})", body)))
    run.outcomes(passed=1)
    assert run.verdict() == "clean"


def test_raises_without_a_finding(check: Check) -> None:
    run = check(using(inside("with inplace.raises('INP102')", CLEAN)))
    run.outcomes(failed=1)
    run.result.stdout.fnmatch_lines(["E*Failed: DID NOT FIND INP102 saved-tensor-modified-silently"])


def test_raises_with_another_finding(check: Check) -> None:
    run = check(using(inside("with inplace.raises('INP103')", SILENT)))
    run.outcomes(failed=1)
    run.result.stdout.fnmatch_lines(["E*Failed: DID NOT FIND INP103 leaf-modified; it did find INP102"])


def test_raises_with_an_unknown_rule(check: Check) -> None:
    run = check(using("with inplace.raises('INP999'):\n    pass"))
    run.outcomes(failed=1)
    run.result.stdout.fnmatch_lines(
        ["E*ValueError: unknown rule 'INP999'; known rules: INP101 saved-tensor-modified, *"]
    )


def test_raises_lets_other_errors_through(check: Check) -> None:
    run = check(using("with inplace.raises('INP102'):\n    raise RuntimeError('mine')"))
    run.outcomes(failed=1)
    run.result.stdout.fnmatch_lines(["E*RuntimeError: mine"])


def test_raises_accepts_no_other_rule_beside_the_expected_one(check: Check) -> None:
    run = check(using(inside("with inplace.raises('INP102')", SILENT + LEAF)))
    run.outcomes(failed=1)
    assert run.codes() == ["INP103"]


def test_raises_leaves_findings_outside_of_the_block(check: Check) -> None:
    run = check(using(LEAF + inside("with inplace.raises('INP102')", SILENT)))
    run.outcomes(failed=1)
    assert run.codes() == ["INP103"]


# -- check and findings -------------------------------------------------------------------------------------


def test_check_fails_where_it_is_called(check: Check, pytester: pytest.Pytester) -> None:
    run = check(using(START + "h.data.mul_(2)  # the write\ninplace.check()\nraise OSError('not reached')"))
    run.outcomes(failed=1)
    run.result.stdout.no_fnmatch_line("*not reached*")
    assert run.codes() == ["INP102"]
    assert run.finding()["modified"]["line"] == line_of(pytester.path / "test_it.py", "# the write")


def test_check_passes_while_all_is_well(check: Check) -> None:
    body = START + "inplace.check()\nh.sum().backward()\ninplace.check()\nh.data.mul_(2)\ninplace.check()"
    run = check(using(body))
    run.outcomes(passed=1)
    assert run.verdict() == "clean"


def test_check_can_be_expected(check: Check) -> None:
    """A test about a defect: pytest.raises around the check is enough for it to pass."""
    body = "from pytest_inplace import InplaceError\n" + START + "h.data.mul_(2)\n"
    body += "with pytest.raises(InplaceError) as caught:\n    inplace.check()\n"
    body += "assert [f.code for f in caught.value.findings] == ['INP102']\nh.data.div_(2)\nh.sum().backward()"
    run = check(using(body))
    run.outcomes(passed=1)


def test_findings(check: Check) -> None:
    body = (
        "assert inplace.findings == []\n"
        + SILENT
        + "assert [f.code for f in inplace.findings] == ['INP102']\n"
    )
    body += LEAF
    body += "assert [f.code for f in inplace.findings] == ['INP102', 'INP103']"
    run = check(using(body))
    run.outcomes(failed=1)
    assert run.codes() == ["INP102", "INP103"]
    run.result.stdout.no_fnmatch_line("*AssertionError*")


# -- frozen -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "write",
    [
        "t.add_(1)",
        "t[0] = 5",
        "t.data.mul_(2)",
        "t.numpy()[0] = 5",
        "t.detach().zero_()",
        "t.view(1, 3)[0, 1] = 9",
        "t += 1",
    ],
)
def test_frozen_tensor(check: Check, pytester: pytest.Pytester, write: str) -> None:
    body = (
        f"t = torch.ones(3)\nwith inplace.frozen(t):\n    y = t * 2\n    {write}  # the write\n    z = t + y"
    )
    run = check(using(body))
    run.outcomes(failed=1)
    finding = run.finding()
    assert (finding["code"], finding["rule"], finding["tensor"]["name"]) == ("INP206", "frozen-modified", "t")
    assert finding["modified"]["line"] == line_of(pytester.path / "test_it.py", "# the write")
    assert finding["modified"]["exact"] is True
    run.result.stdout.fnmatch_lines(
        ["E   INP206 frozen-modified: t f32[[]3] was declared frozen and was written*"]
    )


def test_frozen_module_names_the_parameter(check: Check, pytester: pytest.Pytester) -> None:
    body = (
        "m = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2))\nwith inplace.frozen(m):\n"
    )
    body += "    m[0].bias.data.zero_().add_(3)  # the write"
    run = check(using(body))
    run.outcomes(failed=1)
    assert run.finding()["tensor"]["name"] == "0.bias"
    assert run.finding()["modified"]["line"] == line_of(pytester.path / "test_it.py", "# the write")


def test_frozen_module_sees_running_statistics(check: Check, pytester: pytest.Pytester) -> None:
    body = "m = torch.nn.BatchNorm1d(2)\nwith inplace.frozen(m):\n    m(torch.ones(4, 2))  # the write"
    run = check(using(body))
    run.outcomes(failed=1)
    names = {f["tensor"]["name"] for f in run.record()["findings"]}
    names |= {o["tensor"]["name"] for f in run.record()["findings"] for o in f["also"]}
    assert names == {"running_mean", "running_var", "num_batches_tracked"}


def test_frozen_lets_readers_be(check: Check) -> None:
    body = "t = torch.ones(3)\nm = torch.nn.Linear(3, 2)\nwith inplace.frozen(t, m):\n"
    body += "    m(t * 2).sum().backward()\nt.add_(1)"
    run = check(using(body))
    run.outcomes(passed=1)
    assert run.verdict() == "clean"


def test_frozen_takes_tensors_and_modules_only(check: Check) -> None:
    run = check(using("with inplace.frozen([torch.ones(3)]):\n    pass"))
    run.outcomes(failed=1)
    run.result.stdout.fnmatch_lines(["E*TypeError: inplace.frozen takes tensors and modules, not list"])


def test_frozen_can_be_expected(check: Check) -> None:
    run = check(using("t = torch.ones(3)\nwith inplace.raises('INP206'), inplace.frozen(t):\n    t.add_(1)"))
    run.outcomes(passed=1)
    assert run.verdict() == "clean"


def test_frozen_that_is_handled_by_the_test_is_clean(check: Check) -> None:
    body = "from pytest_inplace import InplaceError\nt = torch.ones(3)\nwith pytest.raises(InplaceError):\n"
    body += "    with inplace.frozen(t):\n        t.add_(1)"
    run = check(using(body))
    run.outcomes(passed=1)
    assert run.verdict() == "clean"


def test_an_error_inside_frozen_stays_the_error(check: Check) -> None:
    run = check(using("t = torch.ones(3)\nwith inplace.frozen(t):\n    t.add_(1)\n    raise OSError('mine')"))
    run.outcomes(failed=1)
    run.result.stdout.fnmatch_lines(["E*OSError: mine"])


# -- hooks --------------------------------------------------------------------------------------------------


def test_a_project_can_veto_findings(check: Check) -> None:
    conftest = """
def pytest_inplace_modify_findings(item, findings):
    findings[:] = [f for f in findings if not (item.name == "test_vetoed" and f.code == "INP102")]
"""
    run = check(function("test_vetoed", SILENT) + function("test_other", SILENT), conftest=conftest)
    run.outcomes(failed=1, passed=1)
    assert (run.verdict("test_vetoed"), run.verdict("test_other")) == ("clean", "finding")


def test_a_project_can_rewrite_findings(check: Check) -> None:
    conftest = """
import dataclasses

def pytest_inplace_modify_findings(item, findings):
    findings[:] = [dataclasses.replace(f, fix="read our page on activations") for f in findings]
"""
    run = check(function("test_it", SILENT), conftest=conftest)
    run.outcomes(failed=1)
    assert run.finding()["fix"] == "read our page on activations"
    run.result.stdout.fnmatch_lines(["E   instead: read our page on activations"])


def test_a_project_can_consume_records(check: Check) -> None:
    conftest = """
def pytest_inplace_checked(config, record):
    with open(config.rootpath / "records.txt", "a") as f:
        print(record["nodeid"], record["verdict"], len(record["findings"]), file=f)
"""
    run = check(function("test_a", SILENT) + function("test_b", CLEAN), conftest=conftest)
    run.outcomes(failed=1, passed=1)
    with open("records.txt") as file:
        assert file.read() == "test_it.py::test_a finding 1\ntest_it.py::test_b clean 0\n"


def test_a_hook_that_breaks_leaves_the_outcome_and_is_reported(check: Check) -> None:
    conftest = (
        "def pytest_inplace_modify_findings(item, findings):\n    raise LookupError('the project broke')\n"
    )
    run = check(function("test_it", SILENT), conftest=conftest)
    run.outcomes(passed=1)
    assert (run.verdict(), run.record()["reason"]) == ("unchecked", "LookupError: the project broke")


def test_conftest_hooks_are_no_error_without_the_flag(check: Check) -> None:
    conftest = "def pytest_inplace_modify_findings(item, findings):\n    findings.clear()\n"
    check(function("test_it", SILENT), conftest=conftest, flag=False).outcomes(passed=1)
