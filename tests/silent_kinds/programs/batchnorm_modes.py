"""A BatchNorm normalises in eval mode, then updates its statistics in train mode, then backward runs."""

from __future__ import annotations

import torch
from torch import nn


def leaves() -> list[torch.Tensor]:
    return [torch.tensor([[1.0, 2.0], [3.0, -1.0]], requires_grad=True)]


def forward(x: torch.Tensor, write: bool = True) -> torch.Tensor:
    norm = nn.BatchNorm1d(2, affine=False, dtype=x.dtype).eval()
    y = norm(x)  # SAVED
    norm.train()
    if write:
        norm(x.detach() * 5)  # WRITTEN
    return y.square().sum()


def run(write: bool) -> list[torch.Tensor | None]:
    (x,) = leaves()
    forward(x, write).backward()
    return [x.grad]


def program() -> list[torch.Tensor | None]:
    return run(write=True)


def right() -> list[torch.Tensor | None]:
    return run(write=False)
