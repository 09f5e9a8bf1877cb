"""A pair of saved-tensor hooks keeps `detach()`, an alias, and the tensor is scaled before backward."""

from __future__ import annotations

import torch
from torch.autograd.graph import saved_tensors_hooks


def leaves() -> list[torch.Tensor]:
    return [torch.tensor([1.0, 2.0], requires_grad=True)]


def forward(x: torch.Tensor, write: bool = True) -> torch.Tensor:
    h = x * 2
    with saved_tensors_hooks(lambda t: t.detach(), lambda t: t):
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
