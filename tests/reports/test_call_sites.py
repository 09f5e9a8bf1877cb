"""Where we are: the qualified name of a function, with and without Python's own help."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, SimpleNamespace

import pytest

from pytest_inplace.reports import call_sites

PACKAGE = Path(call_sites.__file__).parent.parent


def codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from codes(constant)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="there is nothing to compare with before Python 3.11")
@pytest.mark.parametrize("path", sorted(PACKAGE.rglob("*.py")), ids=lambda path: path.stem)
def test_names_from_the_source_are_those_that_python_gives(path: Path) -> None:
    for code in codes(compile(path.read_text("utf-8"), str(path), "exec")):
        # A lambda may be a default argument, which belongs to what is around the function.
        if code.co_name != "<lambda>" and "<lambda>." not in code.co_qualname:
            without_help = SimpleNamespace(
                co_name=code.co_name, co_filename=code.co_filename, co_firstlineno=code.co_firstlineno
            )
            assert call_sites.qualname(without_help) == call_sites.qualname(code)  # type: ignore[arg-type]


def test_without_source_there_is_no_name() -> None:
    code = next(c for c in codes(compile("def f(): pass", "<made up>", "exec")) if c.co_name == "f")
    assert call_sites._qualname_in_source(code) is None
