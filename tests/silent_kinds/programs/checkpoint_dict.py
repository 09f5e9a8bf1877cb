"""A checkpointed block takes a dict, and the batch in it is refilled before backward."""

from __future__ import annotations

import torch
from torch.utils.checkpoint import checkpoint


def block(batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return batch["tokens"] * batch["weight"]  # SAVED


def leaves() -> list[torch.Tensor]:
    return [torch.tensor([1.0, 2.0], requires_grad=True)]


def forward(weight: torch.Tensor, write: bool = True) -> torch.Tensor:
    tokens = torch.tensor([3.0, 4.0], dtype=weight.dtype)
    out = checkpoint(block, {"tokens": tokens, "weight": weight}, use_reentrant=False)
    if write:
        tokens.fill_(6)  # WRITTEN
    return out.sum()


def run(write: bool) -> list[torch.Tensor | None]:
    (weight,) = leaves()
    forward(weight, write).backward()
    return [weight.grad]


def program() -> list[torch.Tensor | None]:
    return run(write=True)


def right() -> list[torch.Tensor | None]:
    return run(write=False)
