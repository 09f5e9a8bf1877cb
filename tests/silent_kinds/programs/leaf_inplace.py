"""Gradient descent by hand writes to a leaf outside `no_grad`, which PyTorch refuses."""

from __future__ import annotations

import torch


def run(write: bool) -> list[torch.Tensor | None]:
    weight = torch.tensor([1.0, 2.0], requires_grad=True)
    (gradient,) = torch.autograd.grad(weight.square().sum(), [weight])
    if write:
        weight -= 0.1 * gradient  # WRITTEN
    return [gradient]


def program() -> list[torch.Tensor | None]:
    return run(write=True)


def right() -> list[torch.Tensor | None]:
    return run(write=False)
