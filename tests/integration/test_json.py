"""The JSON report: its contract, one record for each checked test, the same however the run was made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.support import CLEAN, HEAD, LATENT, LEAF, SILENT, VERSION, function, line_of, read_json

if TYPE_CHECKING:
    from tests.integration.conftest import Check

ALL = "".join(
    function(f"test_{name}", body)
    for name, body in [
        ("clean", CLEAN),
        ("silent", SILENT),
        ("version", VERSION),
        ("latent", LATENT),
        ("leaf", LEAF),
    ]
)
FINDING = {
    "code": str, "rule": str, "state": str, "tensor": dict, "saved": dict, "modified": dict, "used": dict,
    "version": dict, "values": dict, "gradients": list, "replayed": bool, "fix": str,
}  # fmt: skip
"""The part of the contract that readers rely on; further keys may come."""


def test_document(check: Check) -> None:
    import torch

    import pytest_inplace

    run = check(ALL)
    run.outcomes(failed=4, passed=1)
    assert list(run.document) == ["schema", "torch", "pytest_inplace", "tests"]
    assert run.document["schema"] == 1
    assert run.document["torch"] == torch.__version__.partition("+")[0]
    assert run.document["pytest_inplace"] == pytest_inplace.__version__
    assert run.nodeids == sorted(
        f"test_it.py::test_{n}" for n in ("clean", "silent", "version", "latent", "leaf")
    )
    assert {t["nodeid"].rpartition("_")[2]: (t["verdict"], [(f["code"], f["state"]) for f in t["findings"]])
            for t in run.document["tests"]} == {
        "clean": ("clean", []),
        "silent": ("finding", [("INP102", "confirmed")]),
        "version": ("finding", [("INP101", "confirmed")]),
        "latent": ("finding", [("INP101", "latent")]),
        "leaf": ("finding", [("INP103", "confirmed")]),
    }  # fmt: skip


def test_clean_record(check: Check) -> None:
    record = check(function("test_clean", CLEAN)).record()
    coverage = record["coverage"]
    assert {k: coverage[k] for k in ("saved", "content_checked", "version_only")} == {
        "saved": 1, "content_checked": 1, "version_only": 0,
    }  # fmt: skip
    assert (record["nodeid"], record["verdict"], record["findings"]) == (
        "test_it.py::test_clean",
        "clean",
        [],
    )


def test_confirmed_finding(check: Check, pytester: pytest.Pytester) -> None:
    finding = check(function("test_silent", SILENT)).finding()
    path = pytester.path / "test_it.py"
    assert {key: type(finding[key]) for key in FINDING} == FINDING
    assert finding["rule"] == "saved-tensor-modified-silently"
    assert finding["tensor"] == {
        "name": "h",
        "shape": [3],
        "dtype": "float32",
        "device": "cpu",
        "leaf": False,
    }

    def place(key: str) -> tuple[Any, ...]:
        return tuple(finding[key][k] for k in ("path", "line", "function"))

    assert place("saved") == ("test_it.py", line_of(path, "h = w.exp()"), "test_silent")
    assert finding["saved"]["op"] == "ExpBackward0"
    assert place("modified") == ("test_it.py", line_of(path, "# the write"), "test_silent")
    assert finding["modified"]["exact"] is True
    assert place("used") == ("test_it.py", line_of(path, "# the use"), "test_silent")
    assert finding["version"] == {"saved": 0, "now": 0}
    assert {k: finding["values"][k] for k in ("changed", "total")} == {"changed": 3, "total": 3}
    assert finding["values"]["max_abs"] == pytest.approx(2.718282)
    (gradient,) = finding["gradients"]
    assert (gradient["name"], gradient["shape"]) == ("w", [3])
    assert (gradient["max_abs"], gradient["max_rel"]) == (pytest.approx(2.718282), pytest.approx(1.0))
    assert finding["replayed"] is True


def test_latent_finding(check: Check) -> None:
    finding = check(function("test_latent", LATENT)).finding()
    assert (finding["code"], finding["state"], finding["used"], finding["gradients"]) == (
        "INP101",
        "latent",
        None,
        [],
    )
    assert finding["version"] == {"saved": 0, "now": 1}
    assert set(FINDING) <= set(finding)


def test_unreplayed_finding_has_nulls(check: Check) -> None:
    finding = check(function("test_silent", SILENT), "--inplace-replay=never").finding()
    assert set(FINDING) <= set(finding)
    assert (finding["modified"], finding["values"], finding["gradients"], finding["replayed"]) == (
        None,
        None,
        [],
        False,
    )


def test_leaf_finding(check: Check) -> None:
    run = check(function("test_leaf", LEAF))
    finding = run.finding()
    assert (finding["rule"], finding["tensor"]["name"], finding["tensor"]["leaf"]) == (
        "leaf-modified",
        "w",
        True,
    )
    # The product saved its factor twice, but the line wrote once.
    run.result.stdout.no_fnmatch_line("*this line did it 2 times*")


def test_values_that_are_not_finite_make_no_invalid_json(check: Check) -> None:
    body = SILENT.replace("h.data.mul_(2)", "h.data.fill_(float('inf')); h.data[0] = float('nan')")
    run = check(function("test_infinite", body))
    run.outcomes(failed=1)
    assert run.codes() == ["INP102"]
    assert run.finding()["values"]["changed"] == 3


def test_text_outside_ascii_survives(check: Check) -> None:
    run = check(function("test_größe", SILENT.replace("# the write", "# schreibt 数")))
    run.outcomes(failed=1)
    assert run.record()["nodeid"].endswith("::test_größe")
    assert "数" in run.finding()["modified"]["source"]


def test_paths_are_relative_to_rootdir_and_absolute_outside_of_it(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    outside = tmp_path_factory.mktemp("outside")
    (outside / "helper_outside.py").write_text("def spoil(h):\n    h.data.mul_(2)\n")
    monkeypatch.syspath_prepend(outside)
    pytester.makeini("[pytest]\n")
    sub = pytester.mkpydir("sub")
    source = "import helper_outside\n" + function(
        "test_a", SILENT.replace("h.data.mul_(2)", "helper_outside.spoil(h)")
    )
    (sub / "test_a.py").write_text(HEAD + source)
    monkeypatch.chdir(sub)
    pytester.runpytest_inprocess("--inplace-check", "--inplace-json=o.json", "test_a.py").assert_outcomes(
        failed=1
    )
    (test,) = read_json(sub / "o.json")["tests"]
    assert test["nodeid"] == "sub/test_a.py::test_a"
    finding = test["findings"][0]
    assert finding["saved"]["path"] == "sub/test_a.py"
    assert (finding["modified"]["path"], finding["modified"]["line"]) == (
        str(outside / "helper_outside.py"),
        2,
    )


def test_findings_of_all_phases_are_in_one_record(check: Check) -> None:
    source = function("fix", "yield\n" + SILENT.strip(), before="@pytest.fixture")
    run = check(source + function("test_both", LEAF, "fix") + function("test_after", CLEAN))
    run.outcomes(failed=1, passed=1, errors=1)
    assert run.codes("test_both") == ["INP103", "INP102"]
    assert run.nodeids == ["test_it.py::test_after", "test_it.py::test_both"]


FLAKY = """
COUNT = []
def test_flaky():
    COUNT.append(1)
    w = torch.ones(3, requires_grad=True)
    h = w.exp()
    if len(COUNT) <= {bad}:
        h.data.mul_(2)
    h.sum().backward()
"""


@pytest.mark.parametrize(("bad", "verdict"), [(2, "clean"), (9, "finding")])
def test_the_last_run_of_a_rerun_test_counts(check: Check, bad: int, verdict: str) -> None:
    """Each failing run of the test is replayed, so two bad runs are one run and its replay."""
    pytest.importorskip("pytest_rerunfailures")
    run = check(FLAKY.format(bad=bad), "--reruns=1")
    run.outcomes(**({"passed": 1, "rerun": 1} if verdict == "clean" else {"failed": 1, "rerun": 1}))
    assert run.nodeids == ["test_it.py::test_flaky"]
    assert run.verdict() == verdict
    run.result.stdout.fnmatch_lines(["1 test checked, 1 saved tensor: *"])
    assert run.text.count("INP102 saved-tensor-modified-silently: h f32[3]") == (
        0 if verdict == "clean" else 2
    )


def test_a_run_without_tests_writes_an_empty_list(pytester: pytest.Pytester) -> None:
    result = pytester.runpytest_inprocess("--inplace-check", "--inplace-json=o.json")
    assert result.ret == pytest.ExitCode.NO_TESTS_COLLECTED
    assert read_json(pytester.path / "o.json")["tests"] == []


def test_an_older_report_is_replaced(check: Check, pytester: pytest.Pytester) -> None:
    (pytester.path / "report.json").write_text("x" * 100_000)
    assert check(function("test_clean", CLEAN)).nodeids == ["test_it.py::test_clean"]
    assert [p.name for p in pytester.path.glob("report.json*")] == ["report.json"]
