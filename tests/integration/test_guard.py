"""``pytest_inplace.guard()`` in a script of its own: one process runs all cases, each test looks at one."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.support import line_of

if TYPE_CHECKING:
    from pathlib import Path

SCRIPT = '''
import json
import traceback

import pytest_inplace
import torch
from pytest_inplace import InplaceError

RESULTS = {}


def case(function):
    """Run a case; keep what it returned or raised, and whether anything was left behind."""
    before = torch.autograd._engine_run_backward
    try:
        result = function()
    except BaseException as error:
        result = {
            "raised": type(error).__name__, "text": str(error), "notes": getattr(error, "__notes__", []),
            "codes": [f.code for f in getattr(error, "findings", [])],
            "lines": [f.modified and f.modified.line for f in getattr(error, "findings", [])],
            "traceback": "".join(traceback.format_exception(error)),
        }
    result["left"] = torch.autograd._engine_run_backward is not before
    RESULTS[function.__name__] = result


def summary(report):
    return {
        "codes": [f.code for f in report.findings], "states": [f.state for f in report.findings],
        "lines": [f.modified and f.modified.line for f in report.findings],
        "functions": [f.modified and f.modified.function for f in report.findings],
        "gradients": [f.relative_error for f in report.findings], "saved": report.coverage.saved,
    }


def start():
    w = torch.ones(3, requires_grad=True)
    return w, w.exp()


@case
def clean():
    with pytest_inplace.guard() as report:
        w, h = start()
        h.sum().backward()
    return summary(report)


@case
def silent():
    with pytest_inplace.guard():
        w, h = start()
        h.data.mul_(2)  # silent
        h.sum().backward()
    return {"codes": "not reached"}


def spoil(tensor):
    tensor.numpy(force=True)[0] = 7  # in a helper


@case
def collected():
    with pytest_inplace.guard(raises=False) as report:
        w, h = start()
        spoil(h)
        h.sum().backward()
    return summary(report)


@case
def no_lines():
    with pytest_inplace.guard(raises=False, lines=False) as report:
        w, h = start()
        h.data.mul_(2)
        h.sum().backward()
    return summary(report)


@case
def latent():
    with pytest_inplace.guard(raises=False) as report:
        w, h = start()
        h.add_(1)  # latent
        del h
    return summary(report)


@case
def latent_raises():
    with pytest_inplace.guard():
        w, h = start()
        h.add_(1)
        del h
    return {}


@case
def latent_off():
    with pytest_inplace.guard(latent=False) as report:
        w, h = start()
        h.add_(1)
        del h
    return summary(report)


@case
def version_error():
    with pytest_inplace.guard():
        w, h = start()
        h.add_(1)  # version
        h.sum().backward()
    return {}


@case
def version_error_handled():
    with pytest_inplace.guard() as report:
        w, h = start()
        h.add_(1)
        try:
            h.sum().backward()
        except RuntimeError:
            pass
    return summary(report)


@case
def nested_exception():
    with pytest_inplace.guard():
        w, h = start()
        h.add_(1)
        try:
            h.sum().backward()
        except RuntimeError as error:
            raise LookupError("wrapped") from error
    return {}


@case
def own_error_after_silent():
    with pytest_inplace.guard():
        w, h = start()
        h.data.mul_(2)
        h.sum().backward()
        raise LookupError("mine")
    return {}


@case
def leaf_write():
    with pytest_inplace.guard():
        w, h = start()
        w.add_(1)  # leaf
    return {}


@case
def nested_guards():
    with pytest_inplace.guard(raises=False) as outer:
        w, h = start()
        with pytest_inplace.guard(raises=False) as inner:
            v = torch.ones(3, requires_grad=True)
            g = v.exp()
            g.data.mul_(2)
            g.sum().backward()
        h.data.mul_(2)
        h.sum().backward()
    return {"outer": summary(outer)["codes"], "inner": summary(inner)["codes"]}


@case
def loop():
    with pytest_inplace.guard(raises=False) as report:
        w = torch.ones(3, requires_grad=True)
        for _ in range(3):
            h = w.exp()
            h.data.mul_(2)  # in a loop
            h.sum().backward()
    return {**summary(report), "occurrences": [f.occurrences for f in report.findings]}


@case
def after():
    """The plain check is back, and silent writes are silent again."""
    w, h = start()
    h.data.mul_(2)
    h.sum().backward()
    h = w.exp()
    h.add_(1)
    try:
        h.sum().backward()
    except RuntimeError as error:
        return {"message": str(error)}
    return {}


print(json.dumps(RESULTS))
'''


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("guard") / "script.py"
    path.write_text(SCRIPT)
    return path


@pytest.fixture(scope="module")
def results(script: Path) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, str(script)], capture_output=True, text=True, check=False, timeout=120
    )
    assert done.returncode == 0, done.stderr
    loaded: dict[str, Any] = json.loads(done.stdout)
    return loaded


def test_clean_block(results: dict[str, Any]) -> None:
    assert (results["clean"]["codes"], results["clean"]["saved"]) == ([], 1)


def test_silent_corruption_raises_at_the_end_of_the_block(results: dict[str, Any], script: Path) -> None:
    got = results["silent"]
    line = line_of(script, "# silent")
    assert (got["raised"], got["codes"], got["lines"]) == ("InplaceError", ["INP102"], [line])
    assert got["text"].startswith(
        "INP102 saved-tensor-modified-silently: h f32[3] was overwritten after autograd had "
    )
    assert f"{script}:{line}: overwritten in silent" in got["text"]
    assert "gradients, right -> computed: 1 of 1 wrong, 100% off overall" in got["text"]


def test_findings_can_be_collected_and_name_the_line_in_a_helper(
    results: dict[str, Any], script: Path
) -> None:
    got = results["collected"]
    assert (got["codes"], got["states"], got["functions"]) == (["INP102"], ["confirmed"], ["spoil"])
    assert got["lines"] == [line_of(script, "# in a helper")]
    assert got["gradients"][0] == pytest.approx((7 - 2.718282) / (3**0.5 * 2.718282), rel=1e-4)


def test_without_lines(results: dict[str, Any]) -> None:
    got = results["no_lines"]
    assert (got["codes"], got["lines"]) == (["INP102"], [None])
    assert got["gradients"][0] == pytest.approx(1.0)


def test_latent(results: dict[str, Any], script: Path) -> None:
    got = results["latent"]
    assert (got["codes"], got["states"], got["lines"]) == (
        ["INP101"],
        ["latent"],
        [line_of(script, "# latent")],
    )
    assert (results["latent_raises"]["raised"], results["latent_raises"]["codes"]) == (
        "InplaceError",
        ["INP101"],
    )
    assert results["latent_off"]["codes"] == []


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions take notes from Python 3.11 on")
def test_version_error_goes_on_with_the_report_as_a_note(results: dict[str, Any], script: Path) -> None:
    got = results["version_error"]
    assert got["raised"] == "RuntimeError"
    assert got["text"] == results["after"]["message"]
    (note,) = got["notes"]
    assert note.startswith("INP101 saved-tensor-modified: h f32[3]")
    assert f"{script}:{line_of(script, '# version')}: overwritten in version_error" in note


def test_version_error_that_the_block_handles(results: dict[str, Any]) -> None:
    assert results["version_error_handled"]["codes"] == []


@pytest.mark.skipif(sys.version_info < (3, 11), reason="exceptions take notes from Python 3.11 on")
@pytest.mark.parametrize(
    ("name", "raised", "start"),
    [
        ("nested_exception", "LookupError", "INP101 saved-tensor-modified: "),
        ("own_error_after_silent", "LookupError", "INP102 saved-tensor-modified-silently: "),
        ("leaf_write", "RuntimeError", "INP104 leaf-inplace: w f32[3]"),
    ],
)
def test_other_errors_go_on_with_the_report_as_a_note(
    results: dict[str, Any], name: str, raised: str, start: str
) -> None:
    got = results[name]
    assert got["raised"] == raised
    assert [note[: len(start)] for note in got["notes"]] == [start]


def test_guards_nest(results: dict[str, Any]) -> None:
    assert (results["nested_guards"]["outer"], results["nested_guards"]["inner"]) == (["INP102"], ["INP102"])


def test_a_loop_is_one_finding(results: dict[str, Any], script: Path) -> None:
    got = results["loop"]
    assert (got["codes"], got["lines"], got["occurrences"]) == (
        ["INP102"],
        [line_of(script, "# in a loop")],
        [3],
    )


def test_nothing_is_left_on_after_any_of_them(results: dict[str, Any]) -> None:
    assert [name for name, got in results.items() if got["left"]] == []
    assert re.match(r"one of the variables needed for gradient computation", results["after"]["message"])


def test_a_script_that_is_not_guarded_needs_no_engine() -> None:
    code = (
        "import sys, pytest_inplace\nengine = [m for m in sys.modules if m.startswith('pytest_inplace.')]\n"
    )
    code += "print('torch' in sys.modules, engine)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "False []\n"
