"""An activation is centred through its NumPy view, for a log, after it was saved."""

from __future__ import annotations

import torch


def leaves() -> list[torch.Tensor]:
    return [torch.tensor([0.5, -1.0, 2.0, 3.0], requires_grad=True)]


def forward(x: torch.Tensor, write: bool = True) -> torch.Tensor:
    h = x * 2
    y = h * h  # SAVED
    if write:
        array = h.detach().numpy()
        array -= array.mean()  # WRITTEN
    return y.sum()


def run(write: bool) -> list[torch.Tensor | None]:
    (x,) = leaves()
    forward(x, write).backward()
    return [x.grad]


def program() -> list[torch.Tensor | None]:
    return run(write=True)


def right() -> list[torch.Tensor | None]:
    return run(write=False)
