"""A gradient penalty's gradients are unscaled by `GradScaler.unscale_` before the penalty's backward pass."""

from __future__ import annotations

import torch


def leaves() -> list[torch.Tensor]:
    return [torch.tensor([1.0, 2.0], requires_grad=True)]


def forward(x: torch.Tensor, write: bool = True) -> torch.Tensor:
    optimizer = torch.optim.SGD([x], lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaled = scaler.scale(x.pow(3).sum())
    (x.grad,) = torch.autograd.grad(scaled, x, create_graph=True)
    penalty = x.grad.square().sum()  # SAVED
    if write:
        scaler.unscale_(optimizer)  # WRITTEN
    return penalty


def run(write: bool) -> list[torch.Tensor | None]:
    (x,) = leaves()
    return list(torch.autograd.grad(forward(x, write), [x]))


def program() -> list[torch.Tensor | None]:
    return run(write=True)


def right() -> list[torch.Tensor | None]:
    return run(write=False)
