"""A linear layer's weight is swapped through `.data =`, but the layer saved a view of the old one."""

from __future__ import annotations

import torch
from torch import nn


def run(write: bool) -> list[torch.Tensor | None]:
    layer = nn.Linear(2, 2, bias=False)
    nn.init.eye_(layer.weight)
    x = torch.tensor([[1.0, -2.0]], requires_grad=True)
    out = layer(x)  # SAVED
    if write:
        layer.weight.data = torch.zeros(2, 2)
    out.square().sum().backward()
    return [layer.weight.grad, x.grad]


def program() -> list[torch.Tensor | None]:
    return run(write=True)


def right() -> list[torch.Tensor | None]:
    return run(write=False)
