"""The Python code in the documentation, and what its comments say about it.

A comment ``# INP102: ...`` marks the line that a finding is to name as the one that wrote, ``# saved ...``
the line that saved. A block without such comments is right: it passes, and nothing is found.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", *sorted(DOCS.glob("**/*.md"))]


@dataclass(frozen=True)
class Block:
    """One fenced block of Python. ``heading`` is that of the section it is in."""

    page: Path
    number: int
    heading: str
    code: str

    @property
    def name(self) -> str:
        return f"{self.page.stem}-{self.number}"

    @property
    def is_test(self) -> bool:
        return "def test_" in self.code

    @property
    def expected(self) -> list[tuple[str, int]]:
        """The rule and the writing line of each finding that the block is to have."""
        lines = self.code.splitlines()
        return [(m[1], i) for i, line in enumerate(lines, 1) if (m := re.search(r"# (INP\d{3})\b", line))]

    @property
    def saved_line(self) -> int | None:
        lines = self.code.splitlines()
        return next((i for i, line in enumerate(lines, 1) if re.search(r"# saved\b", line)), None)


def blocks() -> list[Block]:
    found = []
    for page in PAGES:
        text = page.read_text("utf-8")
        for i, match in enumerate(re.finditer(r"^```python\n(.*?)^```", text, re.M | re.S)):
            above = re.sub(r"^```.*?^```", "", text[: match.start()], flags=re.M | re.S)
            headings = re.findall(r"^#+ (.+)$", above, re.M)
            found.append(Block(page, i, headings[-1] if headings else "", match[1]))
    return found
