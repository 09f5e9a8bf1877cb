"""A Function's forward clips its input in place without marking it dirty, and the input is used again."""

from __future__ import annotations

from typing import Any

import torch


class Clip(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, mark: bool) -> torch.Tensor:
        ctx.save_for_backward(x < 1)
        if mark:
            ctx.mark_dirty(x)
        x.clamp_(max=1)  # WRITTEN
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad * ctx.saved_tensors[0], None


def leaves() -> list[torch.Tensor]:
    return [torch.tensor([0.25, 2.0, 3.0], requires_grad=True)]


def forward(x: torch.Tensor, write: bool = True) -> torch.Tensor:
    h = x * 2
    clipped = Clip.apply(h, not write)  # SAVED
    return (clipped + h).sum()


def run(write: bool) -> list[torch.Tensor | None]:
    (x,) = leaves()
    forward(x, write).backward()
    return [x.grad]


def program() -> list[torch.Tensor | None]:
    return run(write=True)


def right() -> list[torch.Tensor | None]:
    return run(write=False)
