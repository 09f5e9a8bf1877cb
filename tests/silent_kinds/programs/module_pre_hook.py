"""A module's full backward pre-hook clips a gradient in place that another branch shares."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn


def clip(module: nn.Module, grad_output: Any) -> None:
    grad_output[0].clamp_(max=2.5)  # WRITTEN


def clip_copy(module: nn.Module, grad_output: Any) -> Any:
    return (grad_output[0].clamp(max=2.5),)


def leaves() -> list[torch.Tensor]:
    return [torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0, 4.0], requires_grad=True)]


def forward(a: torch.Tensor, b: torch.Tensor, write: bool = True) -> torch.Tensor:
    weights = torch.tensor([1.0, 5.0], dtype=a.dtype)
    other = b * weights
    layer = nn.Tanh()
    layer.register_full_backward_pre_hook(clip if write else clip_copy)
    return ((layer(a) + other) * weights).sum()


def run(write: bool) -> list[torch.Tensor | None]:
    a, b = leaves()
    forward(a, b, write).backward()
    return [a.grad, b.grad]


def program() -> list[torch.Tensor | None]:
    return run(write=True)


def right() -> list[torch.Tensor | None]:
    return run(write=False)
