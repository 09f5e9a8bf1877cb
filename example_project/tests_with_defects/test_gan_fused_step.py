"""Defect: the discriminator takes its step before the backward of a generator loss that went through it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from digits_lab.data import load_split


class Critic(nn.Module):
    """Scores images; higher means more real."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 1))

    def forward(self, images: Tensor) -> Tensor:
        return self.layers(images)  # SAVED


class Gan:
    """A generator and a critic that share each forward pass of the fake images."""

    def __init__(self) -> None:
        self.generator = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 64), nn.Sigmoid())
        self.critic = Critic()
        self.generator_optimizer = torch.optim.Adam(self.generator.parameters(), lr=1e-2, fused=True)
        self.critic_optimizer = torch.optim.Adam(self.critic.parameters(), lr=1e-2, fused=True)

    def step(self, real: Tensor) -> tuple[float, float]:
        fake = self.generator(torch.randn(len(real), 8))
        generator_loss = F.softplus(-self.critic(fake)).mean()
        real_scores, fake_scores = self.critic(torch.cat([real, fake.detach()])).chunk(2)
        critic_loss = F.softplus(-real_scores).mean() + F.softplus(fake_scores).mean()
        self.critic_optimizer.zero_grad()
        critic_loss.backward()
        self.critic_optimizer.step()  # WRITTEN
        self.generator_optimizer.zero_grad()
        generator_loss.backward()
        self.generator_optimizer.step()
        return critic_loss.item(), generator_loss.item()


def test_critic_learns_to_tell_them_apart() -> None:
    torch.manual_seed(0)
    real = load_split()[0].take(32).tensors()[0].flatten(1)
    gan = Gan()
    losses = [gan.step(real) for _ in range(8)]
    assert losses[-1][0] < losses[0][0]
