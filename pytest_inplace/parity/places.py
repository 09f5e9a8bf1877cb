"""Places in memory that one operator writes more than once, read off its arguments."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

_EXACT = 1 << 20
"""Up to how many elements a view is looked at one by one."""


def overlaps(tensor: torch.Tensor) -> bool:
    """Whether elements of a tensor share places, as those of an expanded one or of windows that slide."""
    import torch

    if tensor.layout is not torch.strided or tensor.is_contiguous():
        return False
    dims = sorted((step, n) for n, step in zip(tensor.shape, tensor.stride(), strict=True) if n > 1)
    if 0 in tensor.shape or not dims:
        return False
    if dims[0][0] == 0:
        return True
    reach = 0
    for step, n in dims:
        if step <= reach:
            return _overlaps_exactly(tensor)
        reach += step * (n - 1)
    return False


def _overlaps_exactly(tensor: torch.Tensor) -> bool:
    import torch

    if tensor.numel() > _EXACT:
        return False
    places = torch.zeros((), dtype=torch.long)
    for n, step in zip(tensor.shape, tensor.stride(), strict=True):
        places = places[..., None] + torch.arange(n) * step
    return len(torch.unique(places)) < tensor.numel()


def indexed(target: torch.Tensor, indices: Any, values: torch.Tensor) -> bool:
    """``x[i, j] = values``: whether one place gets different values."""
    import torch

    given = [None if i is None else i.detach().cpu() for i in indices]
    masks = (torch.bool, torch.uint8)
    if values.numel() == 1 or all(i is None or i.dtype in masks for i in given):
        return False  # a mask, or several, name each place once
    taken: list[Any] = []
    for i in given:
        taken += [None] if i is None else list(i.nonzero(as_tuple=True)) if i.dtype in masks else [i]
    taken += [None] * (target.dim() - len(taken))
    shape = tuple(target.shape)
    # Masks become indices, negative indices count from the end, and a broadcast index is spread out.
    spread = [
        torch.zeros((1,), dtype=torch.long) if i is None else i.long() % n
        for i, n in zip(taken, shape, strict=True)
    ]
    place = tuple(slice(None) if i is None else j for i, j in zip(taken, spread, strict=True))
    at = [i is not None for i in taken]
    if not _twice([j for j, there in zip(spread, at, strict=True) if there]):
        return False
    named, others = _numbers(shape, at)[place], _numbers(shape, [not there for there in at])[place]
    where = named * math.prod(n for n, there in zip(shape, at, strict=True) if not there) + others
    return conflict(where, values.detach().cpu().expand(where.shape))


def _twice(indices: list[torch.Tensor]) -> bool:
    """Whether indices that belong together are there twice: the cheap look, whatever the values' size."""
    import torch

    rows = torch.stack([i.flatten() for i in torch.broadcast_tensors(*indices)], 1)  # type: ignore[no-untyped-call]
    return len(torch.unique(rows, dim=0)) < len(rows)


def _numbers(shape: tuple[int, ...], wanted: list[bool]) -> torch.Tensor:
    """A number for each place along the wanted dimensions, in a view that has all of them."""
    import torch

    sizes = [n if w else 1 for n, w in zip(shape, wanted, strict=True)]
    return torch.arange(math.prod(sizes)).reshape(sizes).expand(shape)


def scattered(dim: int, index: torch.Tensor, source: torch.Tensor) -> bool:
    """scatter along a dimension."""
    import torch

    if index.numel() < 2:
        return False
    index, source = index.detach().cpu(), source.detach().cpu()
    source = source[tuple(slice(0, n) for n in index.shape)]
    index = index.movedim(dim, 0).flatten(1) if index.dim() > 1 else index[:, None]
    source = source.movedim(dim, 0).reshape(index.shape)
    lines = index.shape[1]
    return conflict(index * lines + torch.arange(lines), source)


def copied(target: torch.Tensor, dim: int, index: torch.Tensor, source: torch.Tensor) -> bool:
    """index_copy along a dimension."""
    import torch

    if index.numel() < 2:
        return False
    index = index.detach().cpu() % target.shape[dim]
    rows = source.detach().cpu().movedim(dim, 0).reshape(len(index), -1)
    return conflict(index[:, None] * rows.shape[1] + torch.arange(rows.shape[1]), rows)


def put(target: torch.Tensor, index: torch.Tensor, source: torch.Tensor) -> bool:
    """put_: indices into the flat tensor."""
    where = index.detach().cpu().flatten() % max(1, target.numel())
    return conflict(where, source.detach().cpu().flatten())


def conflict(places: torch.Tensor, values: torch.Tensor) -> bool:
    """Whether one place gets two different values; NaNs are the same."""
    places, values = places.flatten(), values.flatten()
    order = places.argsort(stable=True)
    places, values = places[order], values[order]
    differ = (values[1:] != values[:-1]) & ~((values[1:] != values[1:]) & (values[:-1] != values[:-1]))
    return bool(((places[1:] == places[:-1]) & differ).any())
