"""The ini key ``inplace_paths``: settings for some files only."""

from __future__ import annotations

import pytest

from tests.integration.support import HEAD, LATENT, SILENT, function


def outcomes(
    pytester: pytest.Pytester, *lines: str, options: tuple[str, ...] = ("--inplace-check",)
) -> dict[str, int]:
    pytester.makeini("[pytest]\ninplace_paths =\n" + "".join(f"    {line}\n" for line in lines))
    result = pytester.runpytest_inprocess(*options)
    found = result.parseoutcomes()
    found.pop("warning", None)
    return found


@pytest.fixture
def project(pytester: pytest.Pytester) -> None:
    """Two test files in two folders, each with a silent finding made in ``lib/write.py`` and a latent one."""
    for folder in ("tests/old", "tests/new", "lib"):
        (pytester.path / folder).mkdir(parents=True)
    body = SILENT.replace("h.data.mul_(2)", "double(h)")
    # Not ".", for which Python 3.10 keeps the folder of the first of these tests.
    source = HEAD + f"import sys; sys.path.insert(0, {str(pytester.path)!r})\nfrom lib.write import double\n"
    source += function("test_silent", body) + function("test_latent", LATENT)
    (pytester.path / "lib/write.py").write_text("def double(h):\n    h.data.mul_(2)\n")
    (pytester.path / "tests/old/test_a.py").write_text(source)
    (pytester.path / "tests/new/test_b.py").write_text(source)


@pytest.mark.usefixtures("project")
@pytest.mark.parametrize(
    ("line", "failed"),
    [
        ("# nothing", 4),
        ("tests/old check=false", 2),
        ("tests/old/ check=false", 2),
        ("tests/old/test_a.py check=false", 2),
        ("tests/ol check=false", 4),
        ("*/test_a.py check=false", 2),
        ("tests/old latent=ignore", 3),
        ('tests/old allow=INP102 reason="being rewritten"', 3),
        ('tests/old allow=INP102,INP101 reason="being rewritten"', 2),
        ("lib/write.py allow=saved-tensor-modified-silently reason=vendored", 2),
        ("lib check=false", 4),
    ],
)
def test_a_line(pytester: pytest.Pytester, line: str, failed: int) -> None:
    assert outcomes(pytester, line) == {k: n for k, n in (("failed", failed), ("passed", 4 - failed)) if n}


@pytest.mark.usefixtures("project")
def test_it_turns_the_check_on_and_later_lines_win(pytester: pytest.Pytester) -> None:
    assert outcomes(pytester, "tests check=true", "tests/new check=false", options=()) == {
        "failed": 2,
        "passed": 2,
    }


@pytest.mark.usefixtures("project")
def test_it_overrides_the_command_line(pytester: pytest.Pytester) -> None:
    options = ("--inplace-check", "--inplace-latent=error")
    assert outcomes(pytester, "tests latent=ignore", options=options) == {"failed": 2, "passed": 2}


def test_a_marker_overrides_it(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=HEAD + function("test_it", SILENT, before="@pytest.mark.inplace_safe"))
    assert outcomes(pytester, "test_it.py check=false") == {"failed": 1}


def test_replay_never_says_why(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(test_it=HEAD + function("test_it", SILENT))
    pytester.makeini("[pytest]\ninplace_paths = test_it.py replay=never\n")
    result = pytester.runpytest_inprocess("--inplace-check")
    result.stdout.fnmatch_lines(["*note: not replayed: off by inplace_paths"])


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("tests", "it says nothing; write PATH key=value"),
        ("tests check=maybe", "check='maybe' is not one of true, false"),
        ("tests latent=no", "latent='no' is not one of error, warn, ignore"),
        ("tests latent", "'latent' is not check="),
        ("tests colour=red", "'colour=red' is not check="),
        ("tests allow=INP102", 'allow needs a reason="..."'),
        ('tests allow=INP102 reason=" "', 'allow needs a reason="..."'),
        ("tests allow=INP999 reason=x", "unknown rule 'INP999'"),
        ('tests reason="open', "No closing quotation"),
    ],
)
def test_a_wrong_line_is_a_usage_error(pytester: pytest.Pytester, line: str, why: str) -> None:
    path = pytester.makeini(f"[pytest]\ninplace_paths =\n    {line}\n")
    result = pytester.runpytest_inprocess()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    text = result.stderr.str()
    assert f"ERROR: inplace_paths in {path}: {line!r}: " in text
    assert why in text
