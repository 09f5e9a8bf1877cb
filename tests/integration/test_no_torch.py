"""A run that never imports torch must not pay for it; one that does so late is checked from there on."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.support import SILENT, VERSION, VERSION_WORDS, function, line_of, read_json

WITNESS = """
import sys

def pytest_unconfigure(config):
    known = {m.partition(".")[0] for m in sys.modules}
    with open(config.rootpath / "modules.txt", "w") as f:
        f.write(" ".join(sorted(known & {"torch", "numpy"})))
    with open(config.rootpath / "finders.txt", "w") as f:
        f.write(" ".join(type(m).__module__ for m in sys.meta_path))
"""
PLAIN_TESTS = """
import pytest

@pytest.fixture
def number():
    yield 1

def test_passes(number):
    assert number == 1

def test_fails():
    assert False

@pytest.mark.inplace_safe
def test_marked():
    pass

def test_skips():
    pytest.skip("no")
"""


@pytest.mark.parametrize(
    "args", [(), ("--inplace-check", "--inplace-json=o.json"), ("--inplace-check", "-n1")]
)
def test_torch_is_never_imported(pytester: pytest.Pytester, args: tuple[str, ...]) -> None:
    if "-n1" in args:
        pytest.importorskip("xdist")
    pytester.makeconftest(WITNESS)
    pytester.makepyfile(test_it=PLAIN_TESTS)
    result = pytester.runpytest_subprocess("-p", "no:hypothesispytest", *args)
    result.assert_outcomes(passed=2, failed=1, skipped=1)
    assert (pytester.path / "modules.txt").read_text() == ""
    assert "pytest_inplace" not in (pytester.path / "finders.txt").read_text()
    if "--inplace-json=o.json" in args:
        document = read_json(pytester.path / "o.json")
        assert document["torch"] is not None
        assert {t["coverage"]["saved"] for t in document["tests"]} == {0}


LATE = "\n".join(
    [
        "def test_before():\n    pass\n",
        function("test_first_import", "import torch\n" + SILENT.replace("# the write", "# first write")),
        function("test_later", "import torch\n" + VERSION.replace("# the write", "# later write")),
        function("test_own", "import torch\ninplace.check()", "inplace"),
    ]
)


def test_a_test_that_imports_torch_itself_is_checked_from_there_on(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(WITNESS)
    path = pytester.makepyfile(test_it=LATE)
    result = pytester.runpytest_subprocess("--inplace-check", "--inplace-json=o.json")
    result.assert_outcomes(passed=2, failed=2)
    found: dict[str, Any] = {
        t["nodeid"].partition("::")[2]: [
            (f["code"], f["modified"]["line"], f["replayed"]) for f in t["findings"]
        ]
        for t in read_json(pytester.path / "o.json")["tests"]
    }
    assert found == {
        "test_before": [],
        "test_first_import": [("INP102", line_of(path, "# first write"), True)],
        "test_later": [("INP101", line_of(path, "# later write"), True)],
        "test_own": [],
    }
    result.stdout.fnmatch_lines([f"E*RuntimeError: {VERSION_WORDS}*"])
    assert "pytest_inplace" not in (pytester.path / "finders.txt").read_text()


def test_the_fixture_works_where_the_test_imports_torch_after_it(pytester: pytest.Pytester) -> None:
    """The fixture is made before the first import of torch in the whole run."""
    body = "with inplace.allow(reason='nothing yet'):\n    import torch\n" + SILENT
    path = pytester.makepyfile(test_it=function("test_it", body, "inplace"))
    result = pytester.runpytest_subprocess("--inplace-json=o.json")
    result.assert_outcomes(failed=1)
    (test,) = read_json(pytester.path / "o.json")["tests"]
    assert [(f["code"], f["modified"]["line"]) for f in test["findings"]] == [
        ("INP102", line_of(path, "# the write"))
    ]


def test_a_missing_or_broken_torch_is_the_tests_own_affair(pytester: pytest.Pytester) -> None:
    (pytester.path / "shadow" / "torch").mkdir(parents=True)
    (pytester.path / "shadow" / "torch" / "__init__.py").write_text("raise ImportError('no torch here')\n")
    source = "import sys, pytest\nsys.path.insert(0, 'shadow')\n"
    source += function("test_it", "with pytest.raises(ImportError, match='no torch here'):\n    import torch")
    source += function(
        "test_again", "with pytest.raises(ImportError, match='no torch here'):\n    import torch"
    )
    pytester.makepyfile(test_it=source)
    result = pytester.runpytest_subprocess("--inplace-check", "-p", "no:hypothesispytest")
    result.assert_outcomes(passed=2)
