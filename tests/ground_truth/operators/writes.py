"""The ways a case overwrites one tensor between the forward and the backward pass."""

from __future__ import annotations

from typing import Any

import torch

# x -> x * SCALE + SHIFT moves every finite x but one (-SHIFT / (SCALE - 1)), and keeps magnitudes tame.
SCALE = 1.25
SHIFT = 0.4375

NONE = "none"
# Version counter moves, the graph does not learn of it.
VERSION = "version"
# An ordinary in-place operation with grad mode on.
IN_GRAPH = "in_graph"
# The two ways of writing that the version counter does not see.
SILENT = "silent"
NUMPY = "numpy"
# The counter moves, the values do not.
SAME_VALUE = "same_value"
# The values move and come back, the counter does not move.
RESTORED = "restored"

WRITES = (VERSION, IN_GRAPH, SILENT, NUMPY, SAME_VALUE, RESTORED)


def _mirror(tensor: torch.Tensor) -> torch.Tensor:
    """Other integers from the same range: most integers here are indices, which have to stay in bounds.

    An out-of-bounds index may make a CPU kernel write anywhere; that would end the process, not the case.
    """
    if tensor.numel() == 0:
        return tensor
    low, high = tensor.min(), tensor.max()
    total = low + high
    if bool(low == high) and bool(high > 0):
        total = total - 1
    return (total - tensor).to(tensor.dtype)


def change_(tensor: torch.Tensor) -> None:
    """Change the values of `tensor` in place."""
    if tensor.dtype == torch.bool:
        tensor.logical_not_()
    elif tensor.is_floating_point() or tensor.is_complex():
        tensor.mul_(SCALE).add_(SHIFT)
    else:
        tensor.copy_(_mirror(tensor))


def change_array(array: Any, tensor: torch.Tensor) -> None:
    """The same change through a numpy array that shares the tensor's memory."""
    if tensor.dtype == torch.bool:
        array[...] = ~array
    elif tensor.is_floating_point() or tensor.is_complex():
        array[...] = array * SCALE + SHIFT
    else:
        array[...] = _mirror(tensor.detach().clone()).numpy()


def write(kind: str, tensor: torch.Tensor) -> None:
    """Overwrite `tensor` in the way `kind` names."""
    if kind == NONE:
        return
    if kind == VERSION:
        with torch.no_grad():
            change_(tensor)
    elif kind == IN_GRAPH:
        change_(tensor)
    elif kind == SILENT:
        change_(tensor.data)
    elif kind == NUMPY:
        change_array(tensor.detach().numpy(), tensor)
    elif kind == SAME_VALUE:
        with torch.no_grad():
            tensor.mul_(True if tensor.dtype == torch.bool else 1)
    elif kind == RESTORED:
        kept = tensor.detach().clone()
        change_(tensor.data)
        tensor.data.copy_(kept)
    else:
        raise ValueError(f"unknown kind of write: {kind}")
