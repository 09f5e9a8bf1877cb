"""PyTorch's own machinery gives the same with the plugin as without: values, errors, warnings, counts."""

from __future__ import annotations

import ast

import pytest

from tests.neighbours.compare import PROGRAMS, Shown, both

PATH = PROGRAMS / "torch_neighbours.py"
NAMES = [n.name for n in ast.parse(PATH.read_text()).body if isinstance(n, ast.FunctionDef)]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> tuple[Shown, Shown]:
    """All programs are run once, and each is then a test of its own."""
    return both(PATH, tmp_path_factory.mktemp("torch"))


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("test_")])
def test_the_same_with_and_without(results: tuple[Shown, Shown], name: str) -> None:
    plain, checked = results
    found = {key for key in plain.seen if key.partition("[")[0] == name}
    assert found, plain.output
    for key in found:
        assert checked.seen[key] == plain.seen[key]
        assert any(item[:2] == ("call", "passed") for item in plain.seen[key] if isinstance(item, tuple))
        assert checked.records[key]["verdict"] == "clean"
        assert checked.records[key]["reason"] is None
