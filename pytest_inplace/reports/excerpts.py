"""The lines of source around a place, read when the run is over; with a word of why where there are none."""

from __future__ import annotations

import linecache
import os
from dataclasses import dataclass

from pytest_inplace.reports.findings import Site

_WIDTH = 200


@dataclass(frozen=True)
class Excerpt:
    """Consecutive lines from line number ``first`` on; ``start`` and ``end`` are columns in the site's."""

    first: int
    lines: tuple[str, ...]
    start: int | None = None
    end: int | None = None
    note: str | None = None


def excerpt(site: Site, root: str, around: int = 3) -> Excerpt:
    """The site's line and up to ``around`` lines before and after it.

    Args:
        site: the place; its path may be relative to ``root``.
        root: the folder that paths are relative to.
        around: how many lines of context.
    """
    if site.path.startswith("<"):
        return _alone(site, f"made at run time ({site.path}), not in a file")
    path = os.path.join(root, site.path)
    try:
        linecache.checkcache(path)
        lines = [line.rstrip("\r\n") for line in linecache.getlines(path)]
    except ValueError:  # a null byte
        lines = []
    if not lines:
        return _alone(site, _why_unreadable(path))
    if site.line > len(lines) or (site.source is not None and lines[site.line - 1] != site.source):
        return _alone(site, "the file has changed since")
    if site.source is None:
        return _alone(site, "the file changed while the tests ran")
    first = max(1, site.line - around)
    chosen = lines[first - 1 : site.line + around]
    while not chosen[0].strip() and first < site.line:
        first, chosen = first + 1, chosen[1:]
    while not chosen[-1].strip() and first + len(chosen) - 1 > site.line:
        chosen = chosen[:-1]
    return Excerpt(first, tuple(line[:_WIDTH] for line in chosen), *_columns(site))


def _alone(site: Site, note: str) -> Excerpt:
    lines = () if site.source is None else (site.source[:_WIDTH],)
    return Excerpt(site.line, lines, *_columns(site), note)


def _columns(site: Site) -> tuple[int | None, int | None]:
    if site.column is None or site.end_column is None or site.end_column > _WIDTH:
        return None, None
    return site.column, site.end_column


def _why_unreadable(path: str) -> str:
    try:
        with open(path, "rb") as file:
            return (
                "the file is empty"
                if not file.read(1)
                else "the file is in an encoding that Python cannot read"
            )
    except OSError as error:
        return f"the file cannot be read: {error.strerror}"
    except ValueError:
        return "the path is none that can be read"
