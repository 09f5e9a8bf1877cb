"""A Function's backward scales the gradient that it is given in place, and another branch shares it."""

from __future__ import annotations

from typing import Any

import torch


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, write: bool) -> torch.Tensor:
        ctx.write = write
        return x * 4

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        if not ctx.write:
            return grad * 4, None
        grad.mul_(4)  # WRITTEN
        return grad, None


def leaves() -> list[torch.Tensor]:
    return [torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0, 4.0], requires_grad=True)]


def forward(a: torch.Tensor, b: torch.Tensor, write: bool = True) -> torch.Tensor:
    weights = torch.tensor([1.0, 2.0], dtype=a.dtype)
    other = b * weights
    return ((Scale.apply(a, write) + other) * weights).sum()


def run(write: bool) -> list[torch.Tensor | None]:
    a, b = leaves()
    forward(a, b, write).backward()
    return [a.grad, b.grad]


def program() -> list[torch.Tensor | None]:
    return run(write=True)


def right() -> list[torch.Tensor | None]:
    return run(write=False)
