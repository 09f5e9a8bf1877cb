"""Copies that keep a tensor's layout."""

from __future__ import annotations

import torch


def keep_layout(tensor: torch.Tensor) -> torch.Tensor:
    """A detached copy with the same strides, overlaps, lazy bits and alignment.

    Kernels choose their order of summation by strides and sometimes by alignment, so a copy in another layout
    would give gradients that differ in the last bit and look like a wrong label.
    """
    tensor = tensor.detach()
    if tensor.layout != torch.strided or tensor.numel() == 0:
        return tensor.clone()
    if tensor.is_conj():
        return keep_layout(tensor.conj()).conj()
    if tensor.is_neg():
        return torch._neg_view(keep_layout(torch._neg_view(tensor)))
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    shift = tensor.data_ptr() % 64 // tensor.element_size()
    memory = torch.empty(shift + extent, dtype=tensor.dtype)
    memory[shift:] = tensor.as_strided((extent,), (1,), tensor.storage_offset())
    return memory.as_strided(tensor.shape, tensor.stride(), shift)
