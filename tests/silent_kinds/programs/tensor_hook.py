"""A tensor hook clips the gradient that it is given in place, and another branch shares it."""

from __future__ import annotations

import torch


def clip(grad: torch.Tensor) -> torch.Tensor:
    return grad.clamp_(max=2.5)  # WRITTEN


def clip_copy(grad: torch.Tensor) -> torch.Tensor:
    return grad.clamp(max=2.5)


def leaves() -> list[torch.Tensor]:
    return [torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0, 4.0], requires_grad=True)]


def forward(a: torch.Tensor, b: torch.Tensor, write: bool = True) -> torch.Tensor:
    other = b * torch.tensor([1.0, 2.0], dtype=b.dtype)
    h = a * 2
    h.register_hook(clip if write else clip_copy)
    weights = torch.tensor([1.0, 5.0], dtype=a.dtype)
    return ((h + other) * weights).sum()


def run(write: bool) -> list[torch.Tensor | None]:
    a, b = leaves()
    forward(a, b, write).backward()
    return [a.grad, b.grad]


def program() -> list[torch.Tensor | None]:
    return run(write=True)


def right() -> list[torch.Tensor | None]:
    return run(write=False)
