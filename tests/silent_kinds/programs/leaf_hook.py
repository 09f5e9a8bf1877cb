"""A hook clips a parameter's gradient in place; the parameter that shares it has copied it by then."""

from __future__ import annotations

import torch


def clip(grad: torch.Tensor) -> torch.Tensor:
    return grad.clamp_(max=7)


def clip_copy(grad: torch.Tensor) -> torch.Tensor:
    return grad.clamp(max=7)


def leaves() -> list[torch.Tensor]:
    return [torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0, 4.0], requires_grad=True)]


def forward(a: torch.Tensor, b: torch.Tensor, write: bool = True) -> torch.Tensor:
    b.register_hook(clip if write else clip_copy)
    return (a + b).square().sum()


def run(write: bool) -> list[torch.Tensor | None]:
    a, b = leaves()
    forward(a, b, write).backward()
    return [a.grad, b.grad]


def program() -> list[torch.Tensor | None]:
    return run(write=True)


def right() -> list[torch.Tensor | None]:
    return run(write=False)
