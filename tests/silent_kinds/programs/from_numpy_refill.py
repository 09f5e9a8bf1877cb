"""A staging buffer that a tensor shares is refilled with the next batch before backward."""

from __future__ import annotations

import numpy as np
import torch


def leaves() -> list[torch.Tensor]:
    return [torch.tensor([[1.0], [2.0]], requires_grad=True)]


def forward(weight: torch.Tensor, write: bool = True) -> torch.Tensor:
    staging = np.array([[1.0, 2.0], [3.0, 4.0]], dtype=weight.detach().numpy().dtype)
    out = torch.from_numpy(staging) @ weight  # SAVED
    if write:
        staging[:] = [[5.0, 1.0], [0.0, 1.0]]  # WRITTEN
    return out.square().sum()


def run(write: bool) -> list[torch.Tensor | None]:
    weight = leaves()[0]
    forward(weight, write).backward()
    return [weight.grad]


def program() -> list[torch.Tensor | None]:
    return run(write=True)


def right() -> list[torch.Tensor | None]:
    return run(write=False)
