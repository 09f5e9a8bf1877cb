"""A Function keeps its input as an attribute of ctx, and the caller writes to it before backward."""

from __future__ import annotations

from typing import Any

import torch


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.x = x
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return 2 * ctx.x * grad


def leaves() -> list[torch.Tensor]:
    return [torch.tensor([1.0, 2.0], requires_grad=True)]


def forward(x: torch.Tensor, write: bool = True) -> torch.Tensor:
    h = x * 2
    y = Square.apply(h)  # SAVED
    if write:
        h += 2  # WRITTEN
    return y.sum()


def run(write: bool) -> list[torch.Tensor | None]:
    (x,) = leaves()
    forward(x, write).backward()
    return [x.grad]


def program() -> list[torch.Tensor | None]:
    return run(write=True)


def right() -> list[torch.Tensor | None]:
    return run(write=False)
