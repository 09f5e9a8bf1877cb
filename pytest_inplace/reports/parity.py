"""How a program's run on another device compares with its run on the CPU, as data."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Literal

Verdict = Literal["agrees", "differs", "not portable", "not compared"]


@dataclass(frozen=True)
class Divergence:
    """Where two devices part: the first value that differs, by which bound, and the operator at fault.

    ``error`` is the distance of the device's value to the one in double precision, ``allowed`` what
    rounding explains. ``operator`` is the first one that gives another result from the same inputs.
    """

    device: str
    point: str
    bound: str
    error: float | None = None
    allowed: float | None = None
    operator: str | None = None
    phase: Literal["forward", "backward"] | None = None
    inputs: tuple[str, ...] = ()
    output: str | None = None
    deterministic: bool = True
    others: int = 0


@dataclass(frozen=True)
class ParityRecord:
    """What came of one test's run on another device."""

    device: str
    verdict: Verdict
    reason: str | None = None
    points: int = 0
    equal: int = 0
    left_out: int = 0
    bound: str | None = None
    runs: int = 0
    nondeterministic: tuple[str, ...] = ()
    hazards: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            **dataclasses.asdict(self),
            "nondeterministic": list(self.nondeterministic),
            "hazards": list(self.hazards),
        }


def divergence_to_json(divergence: Divergence | None) -> dict[str, Any] | None:
    if divergence is None:
        return None
    return {**dataclasses.asdict(divergence), "inputs": list(divergence.inputs)}


def divergence_from_json(data: dict[str, Any] | None) -> Divergence | None:
    return None if data is None else Divergence(**{**data, "inputs": tuple(data["inputs"])})
