"""A critic's fused AdamW step comes between the actor's forward pass and its backward pass."""

from __future__ import annotations

import torch
from torch import nn


def run(write: bool) -> list[torch.Tensor | None]:
    actor, critic = nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False)
    nn.init.eye_(actor.weight)
    nn.init.constant_(critic.weight, 0.5)
    optimizer = torch.optim.AdamW(critic.parameters(), lr=0.7, weight_decay=0.0, fused=True)
    state = torch.tensor([[1.0, 2.0]])
    actor_loss = -critic(actor(state)).sum()  # SAVED
    critic(state).sum().backward()
    if write:
        optimizer.step()  # WRITTEN
    optimizer.zero_grad()
    actor_loss.backward()
    return [actor.weight.grad, critic.weight.grad]


def program() -> list[torch.Tensor | None]:
    return run(write=True)


def right() -> list[torch.Tensor | None]:
    return run(write=False)
