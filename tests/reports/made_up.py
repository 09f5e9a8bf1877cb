"""Records with everything in them, as many as asked for, hostile text included."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_inplace.reports.findings import (
    RULES,
    Change,
    Finding,
    GradientError,
    OtherTensor,
    Site,
    TensorInfo,
    ValueDiff,
    to_json,
)
from pytest_inplace.reports.pictures import HeatMap, Histogram

_BREAK = "document.title='broken'"
HOSTILE = f'</script><script>{_BREAK}</script><img src=x onerror="{_BREAK}">&amp;\'"`{{0}}'
SOURCE = "".join(f"    h{i} = layer(x)  # {HOSTILE}\n" for i in range(1, 61))


def source(root: Path, name: str = "model.py") -> None:
    (root / name).write_text(SOURCE, encoding="utf-8")


def site(line: int, path: str = "model.py", function: str = "forward") -> Site:
    return Site(path, line, function, SOURCE.splitlines()[line - 1], 4, 6, "MulBackward0", f"Net.{function}")


def finding(number: int, **other: Any) -> Finding:
    """A finding on a line of its own, complete with pictures of full size."""
    tensor = TensorInfo(f"h{number}", (64, 32), "float32")
    cells = tuple("".join(str((x * y + number) % 10) for x in range(24)) for y in range(24))
    heat = HeatMap(1, 64, 32, (3, 2), cells)
    bars = Histogram(-0.5, 0.5, tuple(range(20)), tuple(range(20, 0, -1)))
    values: dict[str, Any] = {
        "code": RULES[number % len(RULES)].code,
        "state": "latent" if number % 7 == 0 else "confirmed",
        "tensor": tensor,
        "saved": site(1 + number % 50, f"folder/file_{number % 20}.py"),
        "modified": Site(
            f"folder/file_{number % 20}.py", number + 1, "clip", "    h.data.clamp_(max=1)", 4, 24
        ),
        "used": site(3, "train.py", "step"),
        "version_saved": 0,
        "version_now": 0,
        "values": ValueDiff(7, 2048, 2.5, tuple(Change((i, i), "0.5", "1") for i in range(5)), heat),
        "gradients": tuple(
            GradientError(
                f"layers.{i}.weight", (64, 32), 0.1, 0.2 + i, 0.9, ("1",), ("2",), bars if i < 3 else None
            )
            for i in range(8)
        ),
        "gradients_judged": True,
        "gradients_total": 9,
        "relative_error": 1 / (number + 1),
        "also": (OtherTensor(tensor, None),),
        "fix": "`.data` hides the write from autograd. Write to a copy instead (`y = x.clamp(...)`)",
    }  # fmt: skip
    return Finding(**{**values, **other})


def record(nodeid: str, *findings: Finding, reason: str | None = None) -> dict[str, Any]:
    return {
        "nodeid": nodeid,
        "verdict": "finding" if findings else "unchecked" if reason else "clean",
        "coverage": {"saved": 12, "content_checked": 11, "version_only": 1, "not_checked": {}},
        "reason": reason,
        "findings": [to_json(f) for f in findings],
    }


def records(count: int) -> list[dict[str, Any]]:
    """One finding in each of so many tests, twice as many clean tests."""
    made = [record(f"tests/test_{i % 30}.py::test_{i}", finding(i)) for i in range(count)]
    return made + [record(f"tests/test_{i % 30}.py::test_clean_{i}") for i in range(2 * count)]
