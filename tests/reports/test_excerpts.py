"""The source around a place, or a word of why there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_inplace.reports.excerpts import Excerpt, excerpt
from pytest_inplace.reports.findings import Site

TEXT = "".join(f"line {i}\n" for i in range(1, 11))


def of(root: Path, line: int, source: str | None, path: str = "a.py") -> Excerpt:
    return excerpt(Site(path, line, "f", source, 0, 4), str(root), around=2)


@pytest.mark.parametrize(
    ("line", "first", "count"), [(5, 3, 5), (1, 1, 3), (2, 1, 4), (10, 8, 3)]
)  # fmt: skip
def test_lines_around(tmp_path: Path, line: int, first: int, count: int) -> None:
    (tmp_path / "a.py").write_text(TEXT)
    found = of(tmp_path, line, f"line {line}")
    assert (found.first, len(found.lines), found.note) == (first, count, None)
    assert found.lines[line - first] == f"line {line}"
    assert (found.start, found.end) == (0, 4)


def test_blank_lines_at_the_ends_are_left_out(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("a\n\n \nhere\n\n\nb\n")
    assert of(tmp_path, 4, "here") == Excerpt(4, ("here",), 0, 4)


@pytest.mark.parametrize(
    ("line", "source", "note"),
    [
        (5, "another line", "the file has changed since"),
        (11, "line 11", "the file has changed since"),
        (5, None, "the file changed while the tests ran"),
    ],
)
def test_a_file_that_changed(tmp_path: Path, line: int, source: str | None, note: str) -> None:
    (tmp_path / "a.py").write_text(TEXT)
    found = of(tmp_path, line, source)
    assert found.note == note
    assert found.lines == (() if source is None else (source,))


def test_what_is_no_file(tmp_path: Path) -> None:
    assert of(tmp_path, 3, None, "<string>").note == "made at run time (<string>), not in a file"
    assert of(tmp_path, 3, "x", "gone.py") == Excerpt(
        3, ("x",), 0, 4, "the file cannot be read: No such file or directory"
    )
    (tmp_path / "empty.py").write_text("")
    assert of(tmp_path, 1, None, "empty.py").note == "the file is empty"
    assert of(tmp_path, 1, None, "nu\0ll.py").note == "the path is none that can be read"


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "utf-8-sig", "cp1251"])
def test_declared_encodings(tmp_path: Path, encoding: str) -> None:
    word = "ж" if encoding == "cp1251" else "ü"
    text = f"# -*- coding: {encoding.removesuffix('-sig')} -*-\nx = '{word}'\n"
    (tmp_path / "a.py").write_bytes(text.encode(encoding))
    assert of(tmp_path, 2, f"x = '{word}'").lines[1] == f"x = '{word}'"


def test_an_undeclared_encoding(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_bytes("x = 'ü'\n".encode("latin-1"))
    assert of(tmp_path, 1, None).note == "the file is in an encoding that Python cannot read"


def test_long_lines_are_cut(tmp_path: Path) -> None:
    line = "x = " + "1" * 5000
    (tmp_path / "a.py").write_text(line)
    assert len(of(tmp_path, 1, line).lines[0]) == 200
