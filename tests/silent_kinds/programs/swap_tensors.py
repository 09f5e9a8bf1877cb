"""A table that a Function keeps on ctx is exchanged with `torch.utils.swap_tensors` before backward."""

from __future__ import annotations

from typing import Any

import torch


class Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
        ctx.table = table
        return x * table

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad * ctx.table, None


def leaves() -> list[torch.Tensor]:
    return [torch.tensor([1.0, 2.0], requires_grad=True)]


def forward(x: torch.Tensor, write: bool = True) -> torch.Tensor:
    table = torch.tensor([3.0, 4.0], dtype=x.dtype)
    y = Lookup.apply(x, table)  # SAVED
    if write:
        torch.utils.swap_tensors(table, torch.tensor([5.0, 6.0], dtype=x.dtype))  # WRITTEN
    return y.sum()


def run(write: bool) -> list[torch.Tensor | None]:
    (x,) = leaves()
    forward(x, write).backward()
    return [x.grad]


def program() -> list[torch.Tensor | None]:
    return run(write=True)


def right() -> list[torch.Tensor | None]:
    return run(write=False)
