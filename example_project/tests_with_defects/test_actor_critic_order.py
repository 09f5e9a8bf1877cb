"""Defect: the critic takes its step before the backward of an actor loss that went through it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from digits_lab.data import load_split


class QFunction(nn.Module):
    """The value of a continuous action for an image."""

    def __init__(self, actions: int = 2) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64 + actions, 32), nn.GELU(), nn.Linear(32, 1))

    def forward(self, images: Tensor, actions: Tensor) -> Tensor:
        inputs = torch.cat([images, actions], dim=1)
        return self.layers(inputs).squeeze(1)  # SAVED


class Agent:
    """A deterministic policy trained through its critic."""

    def __init__(self) -> None:
        self.actor = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 2), nn.Tanh())
        self.critic = QFunction()
        self.actor_optimizer = torch.optim.SGD(self.actor.parameters(), lr=0.05, foreach=True)
        self.critic_optimizer = torch.optim.SGD(self.critic.parameters(), lr=0.05, foreach=True)

    def step(self, images: Tensor, target: Tensor) -> float:
        actions = self.actor(images)
        reward = -(actions.detach() - target).square().sum(1)
        actor_loss = -self.critic(images, actions).mean()
        critic_loss = F.mse_loss(self.critic(images, actions.detach()), reward)
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()  # WRITTEN
        self.actor_optimizer.zero_grad()
        actor_loss.backward()
        self.actor_optimizer.step()
        return critic_loss.item()


def test_critic_fits_the_reward() -> None:
    torch.manual_seed(0)
    images, labels = load_split()[0].take(32).tensors()
    target = torch.stack([labels / 9.0, 1.0 - labels / 9.0], dim=1)
    agent = Agent()
    losses = [agent.step(images.flatten(1), target) for _ in range(10)]
    assert losses[-1] < losses[0]
