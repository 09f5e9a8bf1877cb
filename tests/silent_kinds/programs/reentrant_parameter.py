"""A parameter of a reentrantly checkpointed layer decays before backward runs it again."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def run(write: bool) -> list[torch.Tensor | None]:
    layer = nn.Linear(2, 2, bias=False)
    nn.init.eye_(layer.weight)
    x = torch.tensor([[1.0, -2.0]], requires_grad=True)
    out = checkpoint(layer, x, use_reentrant=True)  # SAVED
    if write:
        with torch.no_grad():
            layer.weight.mul_(0.6)  # WRITTEN
    out.square().sum().backward()
    return [x.grad, layer.weight.grad]


def program() -> list[torch.Tensor | None]:
    return run(write=True)


def right() -> list[torch.Tensor | None]:
    return run(write=False)
