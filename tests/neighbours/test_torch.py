"""PyTorch's own machinery gives the same with the plugin as without: values, errors, warnings, counts."""

from __future__ import annotations

import ast
import os
from functools import cache
from pathlib import Path

import pytest

from tests.neighbours.compare import PROGRAMS, Shown, both, difference

QUICK = ["torch_neighbours.py", "compilers.py"]
SLOW = ["slow_compilers.py"]
slow = pytest.mark.skipif(
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


@pytest.mark.parametrize(
    ("file", "name"),
    [(file, name) for file in QUICK for name in names(file)]
    + [pytest.param(file, name, marks=slow) for file in SLOW for name in names(file)],
)
def test_the_same_with_and_without(folder: Path, file: str, name: str) -> None:
    plain, checked = shown(file, folder)
    found = {key for key in plain.seen if key.partition("[")[0] == name}
    assert found, plain.output
    for key in found:
        phases = [item for item in plain.seen[key] if item[0] in ("setup", "call")]
        if phases[-1][1] == "skipped":
            pytest.skip(phases[-1][2])
        assert {phase[1] for phase in phases} == {"passed"}, phases
        assert difference(plain.seen[key], checked.seen[key]) is None
        (without,) = plain.noted[key]
        assert without
        for noted in checked.noted[key]:  # a second run is a run like the first one
            assert difference(without, noted) is None
        assert checked.records[key]["verdict"] == "clean"
        assert checked.records[key]["reason"] is None
