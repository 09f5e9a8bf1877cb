"""A BatchNorm's statistics are broadcast with their version preserved, as DDP does, before backward."""

from __future__ import annotations

import torch
from torch import nn


def leaves() -> list[torch.Tensor]:
    return [torch.tensor([[1.0, 2.0], [3.0, -1.0]], requires_grad=True)]


def forward(x: torch.Tensor, write: bool = True) -> torch.Tensor:
    norm = nn.BatchNorm1d(2, affine=False, dtype=x.dtype).eval()
    y = norm(x)  # SAVED
    variance = norm.running_var
    assert variance is not None
    if write:
        with torch.autograd._unsafe_preserve_version_counter(variance):
            variance.fill_(4.0)  # WRITTEN
    return y.square().sum()


def run(write: bool) -> list[torch.Tensor | None]:
    (x,) = leaves()
    forward(x, write).backward()
    return [x.grad]


def program() -> list[torch.Tensor | None]:
    return run(write=True)


def right() -> list[torch.Tensor | None]:
    return run(write=False)
