"""Magnitude pruning: masks, and a what-if evaluation with the masks applied."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

Masks = dict[str, Tensor]


@torch.no_grad()
def magnitude_masks(model: nn.Module, fraction: float) -> Masks:
    """Masks that drop the smallest `fraction` of each matrix or filter bank."""
    masks: Masks = {}
    for name, parameter in model.named_parameters():
        if parameter.dim() < 2:
            continue
        sizes = parameter.abs().flatten()
        threshold = sizes.kthvalue(max(1, int(fraction * sizes.numel()))).values
        masks[name] = parameter.abs() > threshold
    return masks


@torch.no_grad()
def apply_masks(model: nn.Module, masks: Masks) -> None:
    """Zero the masked weights for good; call it between optimizer steps."""
    for name, mask in masks.items():
        model.get_parameter(name).mul_(mask)


@contextmanager
def pruned(model: nn.Module, masks: Masks) -> Iterator[None]:
    """Run the block with masked weights in place of the dense ones.

    The dense tensors are set aside and put back, never written to, so a pending backward is unaffected.
    """
    dense = {name: model.get_parameter(name).data for name in masks}
    for name, mask in masks.items():
        model.get_parameter(name).data = dense[name] * mask
    try:
        yield
    finally:
        for name, values in dense.items():
            model.get_parameter(name).data = values


def sparsity(model: nn.Module, masks: Masks) -> float:
    """Fraction of the maskable weights that are zero."""
    zeros = sum(int((model.get_parameter(name) == 0).sum()) for name in masks)
    return zeros / sum(mask.numel() for mask in masks.values())
