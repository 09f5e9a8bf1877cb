"""The reference is what the code says, all of it."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import pytest

import pytest_inplace
from docs_build import reference
from docs_build.json_format import rows
from pytest_inplace.session import hookspecs
from pytest_inplace.session.fixture import Inplace


def test_options_are_those_that_pytest_shows(pytester: pytest.Pytester) -> None:
    page = reference.options_page()
    help_text = pytester.runpytest_inprocess("--help").stdout.str()
    declared = reference.Options()
    assert len(declared.options) >= 5
    for flag, _ in declared.options:
        assert flag in help_text
        assert f"| `{flag}" in page
    for key in declared.ini:
        assert f"`{key}`" in page


def test_marker_fixture_api_and_hooks_are_complete() -> None:
    pages = reference.pages()
    for name in ("check", "allow", "reason", "latent", "replay", "parity"):
        assert f"{name}: " in pages["marker"]
    for name, member in vars(Inplace).items():
        if not name.startswith("_"):
            assert f"## inplace.{name}\n" in pages["fixture"]
            assert (inspect.getdoc(member) or "").partition("\n")[0].replace("``", "`") in pages["fixture"]
    for name in pytest_inplace.__all__:
        assert name == "__version__" or f"## pytest_inplace.{name}\n" in pages["api"]
    for name in vars(hookspecs):
        assert not name.startswith("pytest_inplace_") or f"## {name}\n" in pages["hooks"]


def keys(value: Any, path: str = "") -> set[str]:
    found: set[str] = set()
    if isinstance(value, dict) and not path.endswith("not_checked"):
        for key, inner in value.items():
            inner_path = f"{path}.{key}" if path else key
            found |= {inner_path} | keys(inner, inner_path)
    elif isinstance(value, list):
        for inner in value:
            found |= keys(inner, f"{path}[]")
    return found


def test_json_page_has_every_key_of_a_report(pytester: pytest.Pytester) -> None:
    import json

    programs = Path(__file__).parent.parent / "reports" / "programs"
    for name in ("test_two_findings", "test_plain_step", "test_latent"):
        pytester.makepyfile(**{name: (programs / f"{name}.py").read_text("utf-8")})
    pytester.runpytest_inprocess("--inplace-check", "--inplace-json=out.json")
    written = keys(json.loads((pytester.path / "out.json").read_text("utf-8")))
    described = {path for path, _, _ in rows()}
    assert "tests[].findings[].gradients[].cosine" in written
    assert written <= described
    # What the page says more than this report has is what is null here.
    assert {path for path in described - written if path.count(".") < 2} == set()


def test_described_keys_exist() -> None:
    from docs_build import json_format

    assert set(json_format._TEXTS) <= {path for path, _, _ in rows()}
