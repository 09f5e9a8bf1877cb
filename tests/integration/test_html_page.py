"""``--inplace-html``: the page of a real run, and of odd sources. With workers: test_other_tools."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.support import CLEAN, LATENT, SILENT, VERSION, function

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.conftest import Check


def data(path: Path) -> dict[str, Any]:
    match = re.search(
        r'<script type="application/json" id="data">(.*?)</script>', path.read_text("utf-8"), re.S
    )
    assert match
    found: dict[str, Any] = json.loads(match[1])
    for finding in found["findings"]:
        finding["steps"] = [found["steps"][number] for number in finding["steps"]]
    return found


def test_everything_is_on_it(check: Check, pytester: pytest.Pytester) -> None:
    tests = "".join(
        function(f"test_{name}", body)
        for name, body in [("a", CLEAN), ("b", SILENT), ("c", VERSION), ("d", LATENT)]
    )
    run = check(tests, "--inplace-html=out/page.html")
    run.outcomes(passed=1, failed=3)
    found = data(pytester.path / "out/page.html")
    assert [test[:2] for test in found["tests"]] == [
        ["test_it.py::test_a", "clean"],
        ["test_it.py::test_b", "finding"],
        ["test_it.py::test_c", "finding"],
        ["test_it.py::test_d", "finding"],
    ]
    silent = next(f for f in found["findings"] if f["code"] == "INP102")
    saved, written, used = silent["steps"]
    assert [step["kind"] for step in silent["steps"]] == ["saved", "written", "used"]
    assert "    h.data.mul_(2)  # the write" in written["lines"]
    assert written["lines"][written["line"] - written["first"]] == "    h.data.mul_(2)  # the write"
    assert saved["note"] is used["note"] is None
    assert silent["values"]["heat"]["cells"] == ["999"]
    (gradient,) = silent["gradients"]
    assert (gradient["name"], sum(gradient["histogram"]["right"])) == ("w", 3)
    assert "html=" in run.text


ODD = {
    "exec": (
        f"exec(compile({SILENT!r}, '<cell 3>', 'exec'), {{'torch': torch}})",
        "made at run time (<cell 3>), not in a file",
    ),
    "changed": (
        "import part, pathlib\npathlib.Path(part.__file__).write_text('# new\\n' * 9)\npart.run()",
        "the file changed while the tests ran",
    ),
    "removed": (
        "import part, pathlib\npathlib.Path(part.__file__).unlink(missing_ok=True)\npart.run()",
        "the file cannot be read: No such file or directory",
    ),
    "zipped": (
        "import sys, zipfile\n"
        "with zipfile.ZipFile('lib.zip', 'w') as z:\n    z.write('part.py', 'zipped.py')\n"
        "sys.path.insert(0, 'lib.zip')\nimport zipped\nzipped.run()\nsys.path.remove('lib.zip')",
        "the file cannot be read: Not a directory",
    ),
}


@pytest.mark.parametrize("kind", ODD)
def test_sources_that_are_not_there(
    check: Check, pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    body, note = ODD[kind]
    (pytester.path / "part.py").write_text("import torch\n" + function("run", SILENT))
    monkeypatch.syspath_prepend(pytester.path)
    run = check(function("test_it", body), "--inplace-html=page.html", "--inplace-sarif=o.sarif")
    run.outcomes(failed=1)
    assert "INTERNALERROR" not in run.text
    (finding,) = data(pytester.path / "page.html")["findings"]
    written = next(step for step in finding["steps"] if step["kind"] == "written")
    assert written["note"] == note
    if kind != "zipped":  # of a zip file Python itself tells the lines
        assert "(the source is " in run.text


def test_a_source_in_another_encoding(check: Check, pytester: pytest.Pytester) -> None:
    text = "# -*- coding: latin-1 -*-\nimport torch\n" + function(
        "test_it", SILENT.replace("the write", "größer")
    )
    (pytester.path / "test_latin.py").write_bytes(text.encode("latin-1"))
    pytester.runpytest_inprocess("--inplace-check", "--inplace-html=page.html")
    (finding,) = data(pytester.path / "page.html")["findings"]
    assert "    h.data.mul_(2)  # größer" in finding["steps"][1]["lines"]


def test_a_path_that_cannot_be_written_is_a_usage_error(check: Check) -> None:
    run = check(function("test_it", SILENT), "--inplace-html=test_it.py/page.html")
    assert run.result.ret == pytest.ExitCode.USAGE_ERROR
    assert "ERROR: --inplace-html: cannot write " in run.result.stderr.str()
