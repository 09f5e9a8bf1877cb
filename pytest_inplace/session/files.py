"""Report files: found to be writable before the run, written whole after it."""

from __future__ import annotations

from pathlib import Path

import pytest


def check_writable(path: Path, source: str, leave: bool = True) -> None:
    """Make the folder of ``path`` and see that a file can be written there.

    Args:
        path: the file.
        source: where the path came from, for the error.
        leave: whether an empty file may stay there, which claims the place.

    Raises:
        pytest.UsageError: if not.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        target = path.resolve()  # what a link points to
        existed = target.exists()
        with target.open("a"):
            pass
        if not existed and not leave:
            target.unlink()
    except (OSError, ValueError) as error:  # ValueError: a null byte
        raise pytest.UsageError(
            f"{source}: cannot write {path}: {getattr(error, 'strerror', None) or error}"
        ) from None


def write(path: Path, text: str) -> None:
    """Write ``text`` through a temporary file, so that a reader never sees half of it.

    Lone surrogates, as a source line in an unknown encoding may hold, are written as escapes.

    Raises:
        OSError: if it cannot be written.
    """
    data = text.encode("utf-8", errors="backslashreplace")
    path = path.resolve()  # a link stays one
    if path.exists() and not path.is_file():  # a device, as /dev/stdout
        path.write_bytes(data)
        return
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_bytes(data)
    temporary.replace(path)
