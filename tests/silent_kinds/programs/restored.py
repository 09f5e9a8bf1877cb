"""An activation is overwritten and put back bit for bit before backward."""

from __future__ import annotations

import torch


def leaves() -> list[torch.Tensor]:
    return [torch.tensor([0.5, -1.0, 2.0, 3.0], requires_grad=True)]


def forward(x: torch.Tensor, write: bool = True) -> torch.Tensor:
    h = x * 2
    y = h * h  # SAVED
    if write:
        kept = h.detach().clone()
        h.data.zero_()
        h.data.copy_(kept)
    return y.sum()


def run(write: bool) -> list[torch.Tensor | None]:
    (x,) = leaves()
    forward(x, write).backward()
    return [x.grad]


def program() -> list[torch.Tensor | None]:
    return run(write=True)


def right() -> list[torch.Tensor | None]:
    return run(write=False)
