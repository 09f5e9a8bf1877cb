"""Custom autograd functions."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable


class _SoftClip(torch.autograd.Function):
    """limit * tanh(x / limit), which saves its output and recomputes nothing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, limit: float) -> Tensor:
        out = torch.tanh(x / limit)
        out.mul_(limit)
        ctx.save_for_backward(out)
        ctx.limit = limit
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (out,) = ctx.saved_tensors
        slope = (out / ctx.limit).square_().neg_().add_(1.0)
        return grad * slope, None


class _LeakyReluInplace(torch.autograd.Function):
    """Leaky ReLU that overwrites its input.

    The sign of the output is that of the input, so the overwritten tensor is all that backward needs.
    """

    @staticmethod
    def forward(ctx: Any, x: Tensor, slope: float) -> Tensor:
        x.mul_(torch.where(x > 0, 1.0, slope))
        ctx.mark_dirty(x)
        ctx.save_for_backward(x)
        ctx.slope = slope
        return x

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        (out,) = ctx.saved_tensors
        return torch.where(out > 0, grad, grad * ctx.slope), None


class _QuantiseStraightThrough(torch.autograd.Function):
    """Round to `levels` steps in [0, 1]; the gradient passes as though nothing had been rounded."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, levels: int) -> Tensor:
        return x.mul(levels - 1).round_().div_(levels - 1)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


def soft_clip(x: Tensor, limit: float = 5.0) -> Tensor:
    """Bound `x` smoothly to (-limit, limit)."""
    return _SoftClip.apply(x, limit)


def leaky_relu_(x: Tensor, slope: float = 0.2) -> Tensor:
    """Leaky ReLU in place; `x` must not be needed by the operation that made it."""
    return _LeakyReluInplace.apply(x, slope)


def quantise_ste(x: Tensor, levels: int = 17) -> Tensor:
    """Round `x` with a straight-through gradient."""
    return _QuantiseStraightThrough.apply(x, levels)
