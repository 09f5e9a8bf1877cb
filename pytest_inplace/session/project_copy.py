"""A throw-away copy of the user's project, without what does not belong to it and within a limit."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MAX_BYTES = 1 << 29
MAX_FILES = 50_000
_SKIPPED = {"__pycache__", ".git", ".hg", ".svn", "node_modules", ".tox", ".nox", ".venv"}


class NotCopied(Exception):
    """The project could not be copied; the text says why."""


@contextmanager
def copied(root: Path, target: Path, changed: dict[str, bytes]) -> Iterator[Path]:
    """A copy of ``root`` at ``target``, with other contents of some files, until the block ends.

    Raises:
        NotCopied: if it is too large, or cannot be read.
    """
    _check_size(root)
    try:
        try:
            shutil.copytree(root, target, symlinks=True, ignore=_ignored)
            for path, content in changed.items():
                file = target / path
                file.unlink()  # which may be a link to the user's own file
                file.write_bytes(content)
        except (OSError, shutil.Error) as error:
            reason = str(error).partition("\n")[0]
            raise NotCopied(f"the project cannot be copied: {reason}") from None
        yield target
    finally:
        shutil.rmtree(target, ignore_errors=True)


def _check_size(root: Path) -> None:
    files = size = 0
    for folder, folders, names in os.walk(root):
        ignored = _ignored(folder, [*folders, *names])
        folders[:] = [name for name in folders if name not in ignored]
        kept = [name for name in names if name not in ignored]
        files += len(kept)
        size += sum(os.lstat(os.path.join(folder, name)).st_size for name in kept)
        if files > MAX_FILES or size > MAX_BYTES:
            raise NotCopied("the project is too large to copy")


def _ignored(folder: str, names: list[str]) -> set[str]:
    """Version control, environments, caches, and what is no file: a socket, a pipe, a link to nowhere."""
    paths = {name: os.path.join(folder, name) for name in names}
    return {
        name
        for name, path in paths.items()
        if name in _SKIPPED
        or os.path.isfile(os.path.join(path, "pyvenv.cfg"))
        or not (os.path.isfile(path) or os.path.isdir(path))
    }
