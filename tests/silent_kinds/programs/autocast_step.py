"""Weights step between forward and backward under autocast, which saved copies of lower precision."""

from __future__ import annotations

import torch
from torch import nn


def run(write: bool) -> list[torch.Tensor | None]:
    layer = nn.Linear(2, 2, bias=False)
    nn.init.eye_(layer.weight)
    x = torch.tensor([[1.0, -2.0]], requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = layer(x)  # SAVED
    if write:
        with torch.no_grad():
            layer.weight.mul_(0.6)
    out.square().sum().backward()
    return [layer.weight.grad, x.grad]


def program() -> list[torch.Tensor | None]:
    return run(write=True)


def right() -> list[torch.Tensor | None]:
    return run(write=False)
