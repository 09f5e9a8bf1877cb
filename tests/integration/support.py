"""What the integration tests share: small defective programs, and a run of pytest over them."""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

    import pytest

HEAD = "import pytest\nimport torch\n"

CLEAN = """
w = torch.ones(3, requires_grad=True)
w.exp().sum().backward()
"""
SILENT = """
w = torch.ones(3, requires_grad=True)
h = w.exp()
h.data.mul_(2)  # the write
h.sum().backward()  # the use
"""
"""INP102: passes in plain PyTorch, with a gradient twice too large."""
VERSION = """
w = torch.ones(3, requires_grad=True)
h = w.exp()
h.add_(1)  # the write
h.sum().backward()  # the use
"""
"""INP101: PyTorch itself raises in backward."""
LATENT = """
w = torch.ones(3, requires_grad=True)
h = w.exp()
h.add_(1)  # the write
"""
"""INP101, latent: backward never runs."""
LEAF = """
w = torch.ones(3, requires_grad=True)
h = w * w
w.data.mul_(3)  # the write
h.sum().backward()  # the use
"""
"""INP103: passes in plain PyTorch."""
VERSION_WORDS = (
    "one of the variables needed for gradient computation has been modified by an inplace operation"
)


def function(name: str, body: str, arguments: str = "", before: str = "") -> str:
    """The source of a test function; ``before`` is a decorator or what else precedes it."""
    text = textwrap.indent(textwrap.dedent(body).strip(), "    ")
    return f"{before}\ndef {name}({arguments}):\n{text}\n"


def line_of(path: Path, text: str) -> int:
    """The number of the only line of ``path`` that contains ``text``."""
    found = [i for i, line in enumerate(path.read_text().splitlines(), 1) if text in line]
    assert len(found) == 1, f"{text!r} is on lines {found}"
    return found[0]


@dataclass
class Run:
    """A finished run of pytest and its JSON report."""

    result: pytest.RunResult
    document: dict[str, Any]

    @property
    def text(self) -> str:
        return self.result.stdout.str()

    @property
    def nodeids(self) -> list[str]:
        return [test["nodeid"] for test in self.document["tests"]]

    def record(self, name: str | None = None) -> dict[str, Any]:
        """The record of the test with this name, or of the only one."""
        found = [t for t in self.document["tests"] if name is None or t["nodeid"].endswith(f"::{name}")]
        assert len(found) == 1, f"{name}: {len(found)} records in {self.nodeids}"
        record: dict[str, Any] = found[0]
        return record

    def finding(self, name: str | None = None) -> dict[str, Any]:
        """The only finding of a test."""
        findings = self.record(name)["findings"]
        assert len(findings) == 1, [(f["code"], f["state"]) for f in findings]
        finding: dict[str, Any] = findings[0]
        return finding

    def codes(self, name: str | None = None) -> list[str]:
        return [f["code"] for f in self.record(name)["findings"]]

    def verdict(self, name: str | None = None) -> str:
        verdict: str = self.record(name)["verdict"]
        return verdict

    def outcomes(self, **counts: int) -> None:
        """Exactly these outcomes, warnings left aside."""
        outcomes = self.result.parseoutcomes()
        for key in ("warnings", "warning", "deselected"):
            outcomes.pop(key, None)
        assert outcomes == counts, self.text


def read_json(path: Path) -> dict[str, Any]:
    """A JSON file in the strict sense: NaN and Infinity are no JSON."""

    def no_constant(name: str) -> Any:
        raise ValueError(f"{name} is not JSON")

    document: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"), parse_constant=no_constant)
    return document
