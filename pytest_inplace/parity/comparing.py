"""Whether two records agree: bit for bit, or within what rounding explains, judged by double precision."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from pytest_inplace.engine.quiet import quiet
from pytest_inplace.parity.recording import Key, Point, Recorder

if TYPE_CHECKING:
    import torch

MULTIPLE = 16.0
"""How many times the CPU's own error another device may be off: the worst rounding noise seen was 4.5."""


@dataclass(frozen=True)
class Difference:
    """A point at which the device is further off than rounding explains."""

    here: Point
    there: Point | None
    bound: str
    error: float | None = None
    allowed: float | None = None
    note: str | None = None


def unequal(ours: Recorder, theirs: Recorder) -> list[Point]:
    """The points that are not the same bit for bit, or missing in the other record."""
    with quiet():
        return [
            point
            for key, point in ours.points.items()
            if key not in theirs.points or not _same(point.value, theirs.points[key].value)
        ]


def within_rounding(ours: Recorder, theirs: Recorder) -> bool:
    """Whether all that differs is so near that no run in double precision could tell against it.

    What :class:`Judge` allows is never less than :data:`MULTIPLE` roundings beyond the CPU's own distance;
    half of that leaves room for the norm, which is the CPU's here and not the exact one.
    """
    if ours.points.keys() != theirs.points.keys():
        return False
    with quiet():
        for key, point in ours.points.items():
            a, b = point.value, theirs.points[key].value
            if _same(a, b):
                continue
            if a.shape != b.shape or a.dtype != b.dtype or not _is_float(a):
                return False
            wide = a.to(_wide(a))
            gap, size = _norm(b.to(wide.dtype) - wide), _norm(wide)
            if not gap <= 0.5 * MULTIPLE * _eps(a) * size or not math.isfinite(size):
                return False
    return True


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors on the CPU are the same: NaNs are equal, zeros of both signs too."""
    with quiet():
        return _same(a, b)


def _same(a: torch.Tensor, b: torch.Tensor) -> bool:
    import torch

    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if torch.equal(a, b):
        return True
    return _is_float(a) and bool(((a == b) | (a.isnan() & b.isnan())).all())


class Judge:
    """Decides by a reference in double precision, and by how far its own rounding takes it, if known."""

    def __init__(self, double: Recorder) -> None:
        self._double = double
        self._scales = _scales(double)
        self.noise: Recorder | None = None
        self.bound: str | None = None

    def differences(self, cpu: Recorder, device: Recorder) -> list[Difference]:
        """What differs by more than rounding explains, in the order in which it was computed."""
        found = []
        with quiet():
            for key, point in cpu.points.items():
                there = device.points.get(key)
                if there is not None and not _same(point.value, there.value):
                    difference = self._judge(key, point, there)
                    if difference is not None:
                        found.append(difference)
        return found

    def _judge(self, key: Key, here: Point, there: Point) -> Difference | None:
        import torch

        a, b = here.value, there.value
        if a.shape != b.shape:
            return Difference(here, there, "exact", note=f"shape {list(a.shape)}, there {list(b.shape)}")
        if not _is_float(a) or not _is_float(b):
            return Difference(here, there, "exact")
        finite = a.isfinite()
        if not torch.equal(finite, b.isfinite()):
            return Difference(here, there, "finite elements", note=_not_finite(a, b))
        a, b = a[finite], b[finite]
        exact = _elements(self._double, key, finite)
        if exact is None:
            return self._by_tolerance(here, there)
        self.bound = self.bound or "double precision"
        eps = max(_eps(a), _eps(b))
        error, own = _norm(b.to(exact.dtype) - exact), _norm(a.to(exact.dtype) - exact)
        scale = self._scales.get((here.kind, here.time), 0.0)
        size = _norm(exact)
        rounding = eps * max(size, 0.01 * scale)
        if self.noise is None:
            # A reference that is far from the CPU, too, is none: something else than rounding is at work.
            usable = own <= math.sqrt(eps) * max(size, scale)
        else:
            noisy = _elements(self.noise, key, finite)
            noise = _norm(noisy - exact) if noisy is not None else own
            if own > MULTIPLE * (noise + rounding):
                return self._by_tolerance(here, there)
            own, usable = max(own, noise), True
        allowed = MULTIPLE * (own + rounding)
        if error <= allowed and usable:
            return None
        return Difference(here, there, "double precision", error, allowed)

    def _by_tolerance(self, here: Point, there: Point) -> Difference | None:
        import torch

        self.bound = "the tolerances of torch.testing"
        try:
            torch.testing.assert_close(there.value, here.value, check_dtype=False, equal_nan=True)
        except AssertionError as error:
            text = " ".join(str(error).split())
            return Difference(here, there, self.bound, note=text)
        return None


def _elements(record: Recorder, key: Key, finite: torch.Tensor) -> torch.Tensor | None:
    """The finite elements of a point in a reference run, if it has them."""
    point = record.points.get(key)
    if point is None or point.value.shape != finite.shape or not _is_float(point.value):
        return None
    elements = point.value[finite]
    return elements if bool(elements.isfinite().all()) else None


def _scales(double: Recorder) -> dict[tuple[str, int], float]:
    """The norm of all gradients of a backward pass together: rounding is not finer than that."""
    squares: dict[tuple[str, int], float] = {}
    with quiet():
        for point in double.points.values():
            if point.kind == "gradient" and _is_float(point.value):
                key = (point.kind, point.time)
                norm = _norm(point.value)
                squares[key] = squares.get(key, 0.0) + (norm * norm if math.isfinite(norm) else 0.0)
    return {key: math.sqrt(value) for key, value in squares.items()}


def _is_float(tensor: torch.Tensor) -> bool:
    return tensor.is_floating_point() or tensor.is_complex()


def _eps(tensor: torch.Tensor) -> float:
    import torch

    return float(torch.finfo(tensor.dtype).eps)


def _norm(tensor: torch.Tensor) -> float:
    import torch

    return float(torch.linalg.vector_norm(tensor.to(_wide(tensor))))


def _wide(tensor: torch.Tensor) -> torch.dtype:
    import torch

    return torch.complex128 if tensor.is_complex() else torch.float64


def _not_finite(a: torch.Tensor, b: torch.Tensor) -> str:
    def count(tensor: torch.Tensor) -> str:
        return f"{int(tensor.isnan().sum())} NaN and {int(tensor.isinf().sum())} infinite"

    return f"{count(a)} elements on the CPU, {count(b)} there"
