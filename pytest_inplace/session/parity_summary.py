"""The lines about parity at the end of the run."""

from __future__ import annotations

from collections import Counter
from typing import Any

_WORDS = {
    "agrees": "agree",
    "differs": "differ",
    "not portable": "not portable",
    "not compared": "not compared",
}


def parity_lines(records: list[dict[str, Any]]) -> list[str]:
    """How many tests agree with each device, and why the others could not be compared."""
    lines = []
    compared = [(r["nodeid"], r["parity"]) for r in records if r.get("parity") is not None]
    for device in sorted({parity["device"] for _, parity in compared}):
        here = [(nodeid, parity) for nodeid, parity in compared if parity["device"] == device]
        counts = Counter(parity["verdict"] for _, parity in here)
        points = sum(p["points"] for _, p in here if p["verdict"] in ("agrees", "differs"))
        equal = sum(p["equal"] for _, p in here)
        tests = ", ".join(f"{counts[v]} {w}" for v, w in _WORDS.items() if counts[v])
        values = f"{points} value{'' if points == 1 else 's'} compared, {equal} equal bit for bit"
        lines.append(f"parity with {device}: {tests}; {values}")
        reasons: dict[str, list[str]] = {}
        for nodeid, parity in here:
            if parity["verdict"] in ("not portable", "not compared"):
                reasons.setdefault(f"{parity['verdict']}: {parity['reason']}", []).append(nodeid)
        for reason, nodeids in reasons.items():
            more = f" and {len(nodeids) - 1} more" if len(nodeids) > 1 else ""
            lines.append(f"    {nodeids[0]}{more}: {reason}")
    return lines
