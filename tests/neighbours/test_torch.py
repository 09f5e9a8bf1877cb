"""PyTorch's own machinery gives the same with the plugin as without: values, errors, warnings, counts."""

from __future__ import annotations

import ast
import os
from functools import cache
from pathlib import Path

import pytest

from tests.neighbours.compare import PROGRAMS, Shown, both

FILES = ["torch_neighbours.py", "compilers.py"]
pytestmark = pytest.mark.skipif(
    not os.environ.get("PYTEST_INPLACE_EXHAUSTIVE"), reason="takes minutes: PYTEST_INPLACE_EXHAUSTIVE=1"
)


def names(file: str) -> list[str]:
    body = ast.parse((PROGRAMS / file).read_text()).body
    return [node.name for node in body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]


@cache
def shown(file: str, folder: Path) -> tuple[Shown, Shown]:
    """All programs of a file are run once, and each is then a test of its own."""
    return both(PROGRAMS / file, folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("torch")


@pytest.mark.parametrize(("file", "name"), [(file, name) for file in FILES for name in names(file)])
def test_the_same_with_and_without(folder: Path, file: str, name: str) -> None:
    plain, checked = shown(file, folder)
    found = {key for key in plain.seen if key.partition("[")[0] == name}
    assert found, plain.output
    for key in found:
        assert checked.seen[key] == plain.seen[key]
        assert any(item[:2] == ("call", "passed") for item in plain.seen[key] if isinstance(item, tuple))
        assert checked.records[key]["verdict"] == "clean"
        assert checked.records[key]["reason"] is None
