"""The input of `torch.kron`, which saves views of it without their version, is scaled before backward."""

from __future__ import annotations

import torch


def leaves() -> list[torch.Tensor]:
    return [torch.tensor([1.0, -2.0], requires_grad=True), torch.tensor([3.0, 0.5], requires_grad=True)]


def forward(a: torch.Tensor, b: torch.Tensor, write: bool = True) -> torch.Tensor:
    left = a * 2
    product = torch.kron(left, b)  # SAVED
    if write:
        left.mul_(3)  # WRITTEN
    return product.square().sum()


def run(write: bool) -> list[torch.Tensor | None]:
    a, b = leaves()
    forward(a, b, write).backward()
    return [a.grad, b.grad]


def program() -> list[torch.Tensor | None]:
    return run(write=True)


def right() -> list[torch.Tensor | None]:
    return run(write=False)
