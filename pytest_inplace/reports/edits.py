"""Changes of the user's source that may mend a finding, as whole new sources. Proving them is another job.

Needs libcst, which keeps every comment and blank line, and is imported when it is needed only.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pytest_inplace.reports.findings import Finding

MAX_CHANGES = 8


@dataclass(frozen=True)
class Change:
    """One way to edit one file. ``path`` is as the finding has it."""

    path: str
    title: str
    before: bytes
    after: bytes
    encoding: str

    def lines(self) -> tuple[list[str], list[str]]:
        return (
            self.before.decode(self.encoding).splitlines(keepends=True),
            self.after.decode(self.encoding).splitlines(keepends=True),
        )

    def diff(self) -> str:
        """As a unified diff."""
        path = self.path.replace("\\", "/")
        lines = difflib.unified_diff(*self.lines(), f"a/{path}", f"b/{path}")
        return "".join(line if line.endswith("\n") else f"{line}\n" for line in lines)


def suggest(finding: Finding, read: Callable[[str], bytes]) -> list[Change]:
    """The changes to try for a finding, the likeliest first; none for a kind of write that is not known.

    Args:
        finding: it names the line that wrote.
        read: gives the content of the file at a path of the finding's.

    Raises:
        OSError: whatever ``read`` raises.
        ValueError: for a source that cannot be parsed; it says why.
    """
    from pytest_inplace.reports.rewriting import Source
    from pytest_inplace.reports.writes import moves, rewrites

    sources: dict[str, Source] = {}

    def source(path: str) -> Source:
        if path not in sources:
            sources[path] = Source(read(path))
        return sources[path]

    def found() -> Iterator[Change]:
        modified, used = finding.modified, finding.used
        if modified is None:
            return
        # To write to another tensor than the parameter itself would lose the update.
        if finding.code != "INP103":
            for title, code in rewrites(source(modified.path), finding):
                yield _change(modified.path, title, source(modified.path), code)
        if used is not None and finding.code != "INP104":
            for title, code in moves(source(used.path), finding):
                yield _change(used.path, title, source(used.path), code)

    unique: dict[bytes, Change] = {}
    for change in found():
        if change.after != change.before:
            unique.setdefault(change.after, change)
    return list(unique.values())[:MAX_CHANGES]


def _change(path: str, title: str, source: object, code: bytes) -> Change:
    from pytest_inplace.reports.rewriting import Source

    assert isinstance(source, Source)
    return Change(path, title, source.data, code, source.encoding)


def merged(changes: list[Change]) -> tuple[bytes, list[Change]]:
    """One file with all these changes of it, and those of them that had to be left out.

    A change is left out if it touches lines that an earlier one touches.
    """
    before = changes[0].lines()[0]
    edits: list[tuple[int, int, list[str]]] = []
    left_out = []
    for change in changes:
        own = _edits(*change.lines())
        if any((a < d and c < b) or (a, b) == (c, d) for a, b, _ in own for c, d, _ in edits):
            left_out.append(change)
        else:
            edits += own
    text = list(before)
    for start, end, lines in sorted(edits, key=lambda edit: edit[:2], reverse=True):
        text[start:end] = lines
    return "".join(text).encode(changes[0].encoding), left_out


def _edits(before: list[str], after: list[str]) -> list[tuple[int, int, list[str]]]:
    matcher = difflib.SequenceMatcher(None, before, after, autojunk=False)
    return [(a, b, after[c:d]) for tag, a, b, c, d in matcher.get_opcodes() if tag != "equal"]
