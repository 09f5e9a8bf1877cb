"""`save_on_cpu` keeps an alias of a tensor that is on the CPU, and that is scaled before backward."""

from __future__ import annotations

import torch


def leaves() -> list[torch.Tensor]:
    return [torch.tensor([1.0, 2.0], requires_grad=True)]


def forward(x: torch.Tensor, write: bool = True) -> torch.Tensor:
    with torch.autograd.graph.save_on_cpu():
        h = x * 2
        y = h * h  # SAVED
    if write:
        h.mul_(3)  # WRITTEN
    return y.sum()


def run(write: bool) -> list[torch.Tensor | None]:
    (x,) = leaves()
    forward(x, write).backward()
    return [x.grad]


def program() -> list[torch.Tensor | None]:
    return run(write=True)


def right() -> list[torch.Tensor | None]:
    return run(write=False)
