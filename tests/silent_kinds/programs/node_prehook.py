"""A hook before an autograd node clips a gradient in place that another branch shares."""

from __future__ import annotations

import torch


def clip(grads: tuple[torch.Tensor, ...]) -> None:
    grads[0].clamp_(max=2.5)  # WRITTEN


def clip_copy(grads: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return (grads[0].clamp(max=2.5),)


def leaves() -> list[torch.Tensor]:
    return [torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0, 4.0], requires_grad=True)]


def forward(a: torch.Tensor, b: torch.Tensor, write: bool = True) -> torch.Tensor:
    weights = torch.tensor([1.0, 5.0], dtype=a.dtype)
    other = b * weights
    h = a * 2
    assert h.grad_fn is not None
    h.grad_fn.register_prehook(clip if write else clip_copy)
    return ((h + other) * weights).sum()


def run(write: bool) -> list[torch.Tensor | None]:
    a, b = leaves()
    forward(a, b, write).backward()
    return [a.grad, b.grad]


def program() -> list[torch.Tensor | None]:
    return run(write=True)


def right() -> list[torch.Tensor | None]:
    return run(write=False)
