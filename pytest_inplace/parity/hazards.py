"""Operations that are right on the CPU by luck: what another device makes of them is not defined."""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Any

from pytest_inplace.engine.quiet import quiet
from pytest_inplace.parity import operators
from pytest_inplace.reports import call_sites

if TYPE_CHECKING:
    import torch

_INDEXED = ("aten::index_put", "aten::index_put_", "aten::_index_put_impl_")
_ALONG = ("aten::scatter", "aten::scatter_", "aten::index_copy", "aten::index_copy_")


class Hazards:
    """Looks at the operators of a placed program, and keeps what it sees with the user's line."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, Any], None] = {}
        self._concerns: dict[Any, str | None] = {}

    def look(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An operator is about to run with these arguments."""
        if func not in self._concerns:
            self._concerns[func] = _concern(func)
        concern = self._concerns[func]
        if concern is None:
            return
        text = None
        if concern != "written":
            with (
                quiet(),
                contextlib.suppress(RuntimeError, IndexError),
            ):  # which the operator itself will raise
                text = _indexed(func, args) if concern == "indexed" else _along(func, args)
        if text is None and any(_overlaps(t) for t in operators.arguments_written(func, args, kwargs)):
            text = f"{_name(func)} writes through an expanded tensor: its elements share places in memory"
        if text is not None:
            self.seen.setdefault((text, call_sites.capture(sys._getframe(2))))


def _concern(func: Any) -> str | None:
    name = func._schema.name
    if name in _INDEXED:
        return "indexed"
    if name in _ALONG and func._overloadname in ("src", "default"):
        return "along"
    writes = any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments)
    return "written" if writes else None


def _name(func: Any) -> str:
    return str(func._schema.name).removeprefix("aten::")


def _overlaps(tensor: torch.Tensor) -> bool:
    strides = tensor.stride()
    return 0 in strides and any(step == 0 and n > 1 for n, step in zip(tensor.shape, strides, strict=True))


def _duplicates(func: Any) -> str:
    return f"{_name(func)} writes different values to one place: which one stays is not defined there"


def _indexed(func: Any, args: tuple[Any, ...]) -> str | None:
    """``x[i, j] = values``: the same i and j twice, with different values."""
    import torch

    indices, values = args[1], args[2]
    if len(args) > 3 and args[3]:
        return None
    given = [i for i in indices if i is not None]
    if not given or any(i.dtype in (torch.bool, torch.uint8) for i in given) or values.numel() == 1:
        return None
    together: Any = torch.broadcast_tensors(*given)  # type: ignore[no-untyped-call]
    shape = together[0].shape
    places = torch.stack([i.flatten() for i in together], 1).cpu()
    if len(given) != len(indices) or values.dim() < len(shape):
        return None  # where the indexed dimensions are in the values is not worth knowing here
    try:
        spread = values.expand(*shape, *values.shape[len(shape) :]).reshape(len(places), -1).cpu()
    except RuntimeError:
        return None
    return _duplicates(func) if _conflict(places, spread) else None


def _along(func: Any, args: tuple[Any, ...]) -> str | None:
    """scatter and index_copy along a dimension: the same index twice, with different values."""
    import torch

    if len(args) < 4:
        return None
    target, dim, index, source = args[:4]
    if index.numel() < 2 or not target.dim():
        return None
    index, source = index.cpu(), source.cpu()
    if index.dim() == 1 and source.dim() >= 1:
        rows = source.movedim(dim, 0)[: len(index)].reshape(len(index), -1)
        return _duplicates(func) if _conflict(index[:, None], rows) else None
    source = source[tuple(slice(0, n) for n in index.shape)]
    index, source = index.movedim(dim, -1), source.movedim(dim, -1)
    order = torch.sort(index, dim=-1, stable=True)
    ordered = source.gather(-1, order.indices)
    same = order.values.diff(dim=-1) == 0
    return _duplicates(func) if bool((same & (ordered.diff(dim=-1) != 0)).any()) else None


def _conflict(places: torch.Tensor, values: torch.Tensor) -> bool:
    """Whether one place (a row of ``places``) gets two different rows of ``values``."""
    import torch

    _, which = torch.unique(places, dim=0, return_inverse=True)
    first = torch.full((int(which.max()) + 1,), -1, dtype=torch.long) if len(which) else which
    first[which.flip(0)] = torch.arange(len(which) - 1, -1, -1)
    return bool((values != values[first[which]]).any())
