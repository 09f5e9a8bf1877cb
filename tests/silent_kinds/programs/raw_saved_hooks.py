"""Hooks are registered on one saved tensor of a node, as PyTorch's tutorial on them does."""

from __future__ import annotations

from typing import Any

import torch


def leaves() -> list[torch.Tensor]:
    return [torch.tensor([0.5, -1.0], requires_grad=True)]


def forward(x: torch.Tensor, write: bool = True) -> torch.Tensor:
    y = x.exp()  # SAVED
    node: Any = y.grad_fn
    if write:
        node._raw_saved_result.register_hooks(lambda t: t.clone(), lambda t: t)
    return y.sum()


def run(write: bool) -> list[torch.Tensor | None]:
    (x,) = leaves()
    forward(x, write).backward()
    return [x.grad]


def program() -> list[torch.Tensor | None]:
    return run(write=True)


def right() -> list[torch.Tensor | None]:
    return run(write=False)
