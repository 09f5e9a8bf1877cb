"""The copy in which changes are tried: what is in it, what is not, and that the original stays as it is."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_inplace.session import project_copy
from pytest_inplace.session.project_copy import NotCopied, copied


@pytest.fixture
def project(tmp_path: Path) -> Path:
    root = tmp_path / "project"
    for name in (
        "pkg/a.py",
        "data/x.bin",
        ".git/config",
        "env/pyvenv.cfg",
        "env/lib/b.py",
        "pkg/__pycache__/a.pyc",
    ):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    return root


def files(root: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file()}


def test_what_is_copied(project: Path, tmp_path: Path) -> None:
    (project / "nowhere").symlink_to(project / "missing")
    os.mkfifo(project / "pipe")
    with copied(project, tmp_path / "copy", {"pkg/a.py": b"changed"}) as copy:
        assert files(copy) == {"pkg/a.py", "data/x.bin"}
        assert (copy / "pkg" / "a.py").read_bytes() == b"changed"
        (copy / "data" / "x.bin").write_text("other")
    assert not (tmp_path / "copy").exists()
    assert (project / "pkg" / "a.py").read_text() == "pkg/a.py"
    assert (project / "data" / "x.bin").read_text() == "data/x.bin"


def test_a_changed_file_that_is_a_link_is_not_written_through(project: Path, tmp_path: Path) -> None:
    outside = tmp_path / "outside.py"
    outside.write_text("mine")
    (project / "pkg" / "linked.py").symlink_to(outside)
    with copied(project, tmp_path / "copy", {"pkg/linked.py": b"changed"}) as copy:
        assert (copy / "pkg" / "linked.py").read_bytes() == b"changed"
    assert outside.read_text() == "mine"


@pytest.mark.parametrize(("limit", "value"), [("MAX_FILES", 1), ("MAX_BYTES", 10)])
def test_too_large(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, value: int
) -> None:
    monkeypatch.setattr(project_copy, limit, value)
    with pytest.raises(NotCopied, match="too large"), copied(project, tmp_path / "copy", {}):
        pass
    assert not (tmp_path / "copy").exists()


def test_a_file_that_is_gone(project: Path, tmp_path: Path) -> None:
    with (
        pytest.raises(NotCopied, match="cannot be copied"),
        copied(project, tmp_path / "copy", {"no.py": b""}),
    ):
        pass
