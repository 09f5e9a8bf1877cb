"""Facts about operators, read off their schemas, and walks over their arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def tensors_in(value: Any) -> list[torch.Tensor]:
    """The tensors among arguments or results, in order."""
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, dict):
        value = value.values()
    elif not isinstance(value, list | tuple):
        return []
    return [t for v in value for t in tensors_in(v)]


def mapped(change: Callable[[Any], Any], value: Any) -> Any:
    """Arguments with ``change`` applied to everything in their lists, tuples and dicts."""
    if isinstance(value, dict):
        return {k: mapped(change, v) for k, v in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(mapped(change, v) for v in value)
    return change(value)


def arguments_written(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> list[torch.Tensor]:
    """The arguments that an operator writes to."""
    places = _written.get(func)
    if places is None:
        places = _written[func] = [
            (i, argument.name)
            for i, argument in enumerate(func._schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
    written = []
    for i, name in places:
        written += tensors_in(args[i] if i < len(args) else kwargs.get(name))
    return written


_written: dict[Any, list[tuple[int, str]]] = {}


_UNFILLED = ("empty", "new_empty", "resize_")


def is_unfilled(func: Any) -> bool:
    """Whether an operator leaves memory as it happens to be."""
    name = func._schema.name.partition("::")[2].lstrip("_")
    return bool(name.startswith(_UNFILLED))


def is_view(func: Any) -> bool:
    """Whether an operator returns a view and computes nothing."""
    found = _views.get(func)
    if found is None:
        infos = [r.alias_info for r in func._schema.returns]
        found = _views[func] = any(i is not None and not i.is_write for i in infos)
    return found


_views: dict[Any, bool] = {}


def kind(func: Any) -> str:
    """How a placement treats an operator: it draws random numbers, makes tensors, lifts them, or computes."""
    import torch

    if torch.Tag.nondeterministic_seeded in func.tags and runs_on_cpu(func):
        return "random"
    if func in (torch.ops.aten.lift_fresh.default, torch.ops.aten.lift.default):
        return "lift"
    arguments = func._schema.arguments
    takes_tensors = any("Tensor" in str(a.type) for a in arguments)
    if not takes_tensors and any(a.name == "device" for a in arguments):
        return "make"
    return "compute"


def runs_on_cpu(func: Any) -> bool:
    """Whether the CPU has the operator: it has no fused attention, and nothing of cuDNN's."""
    import torch

    name = func.name()
    known = torch._C._dispatch_has_computed_kernel_for_dispatch_key(name, "CPU")
    return bool(known) and not any(library in name for library in ("cudnn", "miopen"))


def widened(value: Any) -> Any:
    """Arguments in which every dtype that is asked for is the widest of its kind."""
    import torch

    wide = wide_dtypes()
    return mapped(lambda v: wide.get(v, v) if isinstance(v, torch.dtype) else v, value)


@functools.cache
def wide_dtypes() -> dict[Any, Any]:
    """What stands for each dtype that rounds, in double precision."""
    import torch

    return {
        torch.float32: torch.float64,
        torch.float16: torch.float64,
        torch.bfloat16: torch.float64,
        torch.complex64: torch.complex128,
    }
