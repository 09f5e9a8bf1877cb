"""What the user calls a tensor: the path of a parameter in its module, or the variable that holds it."""

from __future__ import annotations

from collections.abc import Iterator
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from pytest_inplace.reports.call_sites import is_library

if TYPE_CHECKING:
    import torch

_MAX_ITEMS = 256


def user_frames(frame: FrameType | None) -> Iterator[FrameType]:
    """The user's frames at and above ``frame``, innermost first."""
    while frame is not None:
        if not is_library(frame.f_code):
            yield frame
        frame = frame.f_back


def tensor_name(
    tensor: torch.Tensor, frame: FrameType | None, saved_in: CodeType | None = None
) -> str | None:
    """The user's name for ``tensor`` as seen from ``frame``; ``None`` if nothing visible holds it.

    Parameters and buffers are named by their path in the outermost module that holds them; anything
    else by a variable, attribute or item that is the tensor or has the same elements, first in the
    function ``saved_in`` that saved it, then in the innermost one.
    """
    with _no_torch_function():
        target = tensor
        base = tensor._base
        owner = base if base is not None and base.grad_fn is None and base.requires_grad else tensor
        frames = sorted(user_frames(frame), key=lambda f: f.f_code is not saved_in)
        for candidate in reversed(frames):
            for name, held in _module_tensors(candidate):
                if held is owner:
                    return name
        for match in (_is, _same_elements, _same_storage):
            for candidate in frames:
                for name, held in _plain_tensors(candidate):
                    if match(held, target) or (match is _is and held is owner):
                        return name
    return None


def leaf_names(frame: FrameType | None) -> dict[int, str]:
    """``id`` of every tensor visible from the frames at and above ``frame`` -> the user's name for it."""
    names: dict[int, str] = {}
    with _no_torch_function():
        frames = list(user_frames(frame))
        for candidate in reversed(frames):
            for name, held in _module_tensors(candidate):
                names.setdefault(id(held), name)
        for candidate in frames:
            for name, held in _plain_tensors(candidate):
                names.setdefault(id(held), name)
    return names


def _no_torch_function() -> Any:
    import torch

    return torch._C.DisableTorchFunction()


def _is(held: torch.Tensor, target: torch.Tensor) -> bool:
    return held is target


def _same_elements(held: torch.Tensor, target: torch.Tensor) -> bool:
    try:
        return (
            held.shape == target.shape
            and held.data_ptr() == target.data_ptr()
            and held.stride() == target.stride()
            and held.numel() > 0
        )
    except RuntimeError:
        return False


def _same_storage(held: torch.Tensor, target: torch.Tensor) -> bool:
    try:
        return held.numel() > 0 and held.untyped_storage().data_ptr() == target.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return False


def _module_tensors(frame: FrameType) -> Iterator[tuple[str, torch.Tensor]]:
    import torch

    for variable, value in list(frame.f_locals.items()):
        for name, held in [(variable, value), *_attributes(variable, value)]:
            if isinstance(held, torch.nn.Module):
                prefix = "" if name == "self" else f"{name}."
                for path, tensor in [*held.named_parameters(), *held.named_buffers()]:
                    yield prefix + path, tensor


def _attributes(variable: str, value: Any) -> list[tuple[str, Any]]:
    """The instance attributes of ``self``: an object of the user's that may hold modules and tensors."""
    import torch

    if variable != "self" or isinstance(value, torch.nn.Module):
        return []
    return [(f"self.{key}", held) for key, held in list(getattr(value, "__dict__", {}).items())[:_MAX_ITEMS]]


def _plain_tensors(frame: FrameType) -> Iterator[tuple[str, torch.Tensor]]:
    import torch

    found: list[tuple[str, Any]] = list(frame.f_locals.items())
    owner = frame.f_locals.get("self")
    if owner is not None:
        found += [(f"self.{k}", v) for k, v in list(getattr(owner, "__dict__", {}).items())[:_MAX_ITEMS]]
    for name, value in found:
        if isinstance(value, torch.Tensor):
            yield name, value
    for name, value in found:
        if isinstance(value, list | tuple):
            for i, item in enumerate(value[:_MAX_ITEMS]):
                if isinstance(item, torch.Tensor):
                    yield f"{name}[{i}]", item
        elif isinstance(value, dict):
            for key, item in list(value.items())[:_MAX_ITEMS]:
                if isinstance(item, torch.Tensor):
                    yield f"{name}[{key!r}]", item
