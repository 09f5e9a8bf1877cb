"""With workers: the same findings, one summary, one report, in the main process."""

from __future__ import annotations

import pytest

from tests.integration.support import CLEAN, HEAD, LATENT, SILENT, VERSION, VERSION_WORDS, function, read_json

pytest.importorskip("xdist")

TESTS = HEAD + "".join(
    function(f"test_{name}", body)
    for name, body in [("clean", CLEAN), ("silent", SILENT), ("version", VERSION), ("latent", LATENT)]
)
CONFTEST = """
def pytest_inplace_checked(config, record):
    import os
    with open(config.rootpath / "records.txt", "a") as f:
        print("PYTEST_XDIST_WORKER" in os.environ, record["nodeid"], file=f)
"""
LOADSCOPE = HEAD + "".join(
    f"\nclass Test{letter}:\n"
    "    @pytest.fixture(scope='class', autouse=True)\n"
    "    def wide(self):\n        yield\n"
    + "".join(
        f"    {line}\n" for name in "xyz" for line in function(f"test_{name}", SILENT, "self").splitlines()
    )
    for letter in "AB"
)


def test_two_workers_report_what_one_process_reports(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=TESTS)
    pytester.makeconftest(CONFTEST)
    result = pytester.runpytest_subprocess("-n2", "--inplace-check", "--inplace-json=two.json", "--color=no")
    result.assert_outcomes(passed=1, failed=3)
    assert result.ret == pytest.ExitCode.TESTS_FAILED
    text = result.stdout.str()
    assert sum(line.strip("= ") == "inplace" for line in text.splitlines()) == 1
    assert text.count("4 tests checked, 4 saved tensors: 4 by content, 0 by version only") == 1
    assert text.count("----- inplace: INP101 -----") == 1
    result.stdout.fnmatch_lines_random(
        [
            "inplace: check=on, latent=error, replay=auto, json=*two.json",
            f"E*RuntimeError: {VERSION_WORDS}*",
            "E   INP102 saved-tensor-modified-silently: h f32[[]3] was overwritten after autograd *",
            "FAILED test_it.py::test_silent - INP102 saved-tensor-modified-silently: *",
        ]
    )
    lines = (pytester.path / "records.txt").read_text().splitlines()
    assert sorted(lines) == [
        f"False test_it.py::test_{name}" for name in ("clean", "latent", "silent", "version")
    ]

    pytester.runpytest_inprocess("--inplace-check", "--inplace-json=one.json")
    assert read_json(pytester.path / "two.json") == read_json(pytester.path / "one.json")


def test_loadscope_replays_within_the_class(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=LOADSCOPE)
    result = pytester.runpytest_subprocess(
        "-n2", "--dist=loadscope", "--inplace-check", "--inplace-json=o.json"
    )
    result.assert_outcomes(failed=6)
    tests = read_json(pytester.path / "o.json")["tests"]
    assert [[(f["code"], f["replayed"]) for f in t["findings"]] for t in tests] == [[("INP102", True)]] * 6


def test_a_wrong_marker_is_a_usage_error_here_too(pytester: pytest.Pytester) -> None:
    """Workers collect, so that the mistake is met there; its text must reach the terminal."""
    pytester.makepyfile(
        test_it="import pytest\n" + function("test_it", "pass", before="@pytest.mark.inplace_safe(latent=3)")
    )
    result = pytester.runpytest_subprocess("-n1", "-p", "no:hypothesispytest")
    assert result.ret != pytest.ExitCode.OK
    text = result.stdout.str() + result.stderr.str()
    assert (
        "test_it.py::test_it: @pytest.mark.inplace_safe: latent=3 is not one of error, warn, ignore" in text
    )
    assert "INTERNALERROR" not in text


def test_a_wrong_ini_value_is_one_usage_error(pytester: pytest.Pytester) -> None:
    path = pytester.makeini("[pytest]\ninplace_latent = loud")
    result = pytester.runpytest_subprocess("-n2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = result.stderr.str()
    assert text.count(f"ERROR: inplace_latent in {path}: 'loud' is not one of error, warn, ignore") == 1
