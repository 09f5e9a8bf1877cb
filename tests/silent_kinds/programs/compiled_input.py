"""A weight that a compiled function multiplied with decays before backward: Inductor checks no version."""

from __future__ import annotations

import torch


@torch.compile(backend="inductor")  # SAVED
def model(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    return (x @ weight).sin().sum()


def run(write: bool) -> list[torch.Tensor | None]:
    x = torch.tensor([[1.0, -2.0], [0.5, 3.0]], requires_grad=True)
    weight = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    loss = model(x, weight)
    if write:
        with torch.no_grad():
            weight.mul_(0.6)  # WRITTEN
    loss.backward()
    return [x.grad, weight.grad]


def program() -> list[torch.Tensor | None]:
    return run(write=True)


def right() -> list[torch.Tensor | None]:
    return run(write=False)
