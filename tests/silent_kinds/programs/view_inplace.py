"""One of several views of an activation is scaled in place, which PyTorch refuses."""

from __future__ import annotations

import torch


def leaves() -> list[torch.Tensor]:
    return [torch.tensor([1.0, 2.0, 3.0, 4.0], requires_grad=True)]


def forward(x: torch.Tensor, write: bool = True) -> torch.Tensor:
    left, right = (x * 2).chunk(2)
    if write:
        left *= 3  # WRITTEN
    else:
        left = left * 3
    return (left * right).sum()


def run(write: bool) -> list[torch.Tensor | None]:
    (x,) = leaves()
    forward(x, write).backward()
    return [x.grad]


def program() -> list[torch.Tensor | None]:
    return run(write=True)


def right() -> list[torch.Tensor | None]:
    return run(write=False)
