"""Pictures of tensors for the reports: small whatever the size and rank of the tensor."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pytest_inplace.reports.pictures import NO_ELEMENT, NOT_FINITE, UNCHANGED, HeatMap, Histogram

if TYPE_CHECKING:
    import torch

CELLS = 24
BINS = 20


def heat_map(gap: torch.Tensor, shape: tuple[int, ...]) -> HeatMap | None:
    """Where and how much elements changed. Call it inside ``quiet()``.

    Args:
        gap: the absolute difference of each element, infinite where that is no number, -1 where the
            element did not change.
        shape: of the tensor.
    """
    import torch

    if not gap.numel():
        return None
    row_dims, rows, columns = _matrix(shape)
    height, width = math.ceil(rows / CELLS), math.ceil(columns / CELLS)
    down, across = math.ceil(rows / height), math.ceil(columns / width)
    flat = gap.flatten()
    flat = torch.cat(
        [flat, flat.new_full((rows * columns - flat.numel(),), -2)]
    )  # a folded vector's last row
    grid = flat.new_full((down * height, across * width), -2)
    grid[:rows, :columns] = flat.view(rows, columns)
    cells = grid.view(down, height, across, width).amax(dim=(1, 3))
    return HeatMap(row_dims, rows, columns, (height, width), _levels(cells))


def _matrix(shape: tuple[int, ...]) -> tuple[int | None, int, int]:
    """How many dimensions make the rows, and the two sizes; as near to a square as the dimensions allow."""
    if sum(size > 1 for size in shape) < 2:
        count = math.prod(shape)
        columns = count if count <= CELLS else math.ceil(math.sqrt(count))
        return None, math.ceil(count / columns), columns
    splits = [(k, math.prod(shape[:k]), math.prod(shape[k:])) for k in range(1, len(shape))]
    return min(splits, key=lambda split: abs(math.log(split[1] / split[2])))


def _levels(cells: torch.Tensor) -> tuple[str, ...]:
    """Each row of the cells as a text, one character for a cell."""
    import torch

    finite = torch.where(cells.isfinite() & (cells > 0), cells, 0)
    greatest = finite.max()
    # Where the greatest is 0, only signs of zeros changed.
    levels = (9 * (finite / greatest).sqrt()).ceil().nan_to_num(1).clamp(1, 9)
    codes = levels.to(torch.uint8) + ord("0")
    for gap, character in ((-2, NO_ELEMENT), (-1, UNCHANGED), (math.inf, NOT_FINITE)):
        codes[cells == gap] = ord(character)
    return tuple(bytes(row).decode("ascii") for row in codes.tolist())


def histogram(right: torch.Tensor, computed: torch.Tensor) -> Histogram | None:
    """Both gradients, flat and in float64, over common bins; ``None`` where there is nothing to count.

    Call it inside ``quiet()``.
    """
    import torch

    if right.is_complex() or computed.is_complex():
        return None
    finite = [t[t.isfinite()] for t in (right, computed)]
    some = torch.cat(finite)
    if not some.numel():
        return None
    low, high = float(some.min()), float(some.max())
    if low == high:
        low, high = low - abs(low) / 2 - 0.5, high + abs(high) / 2 + 0.5
    if not math.isfinite(high - low):
        return None
    counts = [
        tuple(int(n) for n in torch.histc(t, BINS, low, high).tolist()) if t.numel() else (0,) * BINS
        for t in finite
    ]
    outside = right.numel() - finite[0].numel(), computed.numel() - finite[1].numel()
    return Histogram(low, high, counts[0], counts[1], outside)
