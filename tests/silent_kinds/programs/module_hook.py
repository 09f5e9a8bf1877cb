"""A module's full backward hook clips a gradient in place that another branch shares."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def clip(module: nn.Module, grad_input: Any, grad_output: Any) -> None:
    grad_output[0].clamp_(max=2.5)  # WRITTEN


def leaves() -> list[torch.Tensor]:
    return [torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0, 4.0], requires_grad=True)]


def forward(a: torch.Tensor, b: torch.Tensor, write: bool = True) -> torch.Tensor:
    other = b * torch.tensor([1.0, 2.0], dtype=b.dtype)
    layer = nn.Tanh()
    if write:
        layer.register_full_backward_hook(clip)
    weights = torch.tensor([1.0, 5.0], dtype=a.dtype)
    return ((layer(a) + other) * weights).sum()


def run(write: bool) -> list[torch.Tensor | None]:
    a, b = leaves()
    forward(a, b, write).backward()
    return [a.grad, b.grad]


def program() -> list[torch.Tensor | None]:
    return run(write=True)


def right() -> list[torch.Tensor | None]:
    return run(write=False)
