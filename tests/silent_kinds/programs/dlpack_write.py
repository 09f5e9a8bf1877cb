"""Another library's view of an activation, imported through DLPack, is normalised in place."""

from __future__ import annotations

import torch


def leaves() -> list[torch.Tensor]:
    return [torch.tensor([0.5, -1.0, 2.0, 3.0], requires_grad=True)]


def forward(x: torch.Tensor, write: bool = True) -> torch.Tensor:
    h = x * 2
    y = h * h  # SAVED
    if write:
        shared = torch.from_dlpack(h.detach())
        shared.div_(3.5)  # WRITTEN
    return y.sum()


def run(write: bool) -> list[torch.Tensor | None]:
    (x,) = leaves()
    forward(x, write).backward()
    return [x.grad]


def program() -> list[torch.Tensor | None]:
    return run(write=True)


def right() -> list[torch.Tensor | None]:
    return run(write=False)
