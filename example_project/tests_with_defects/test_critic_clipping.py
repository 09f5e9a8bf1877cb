"""Defect: the critic's weights are clipped while a loss that went through them still waits for backward."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from digits_lab.data import load_split


class WassersteinGan:
    """A GAN whose critic is kept Lipschitz by clipping its weights."""

    def __init__(self, clip: float = 0.05) -> None:
        self.clip = clip
        self.generator = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 64), nn.Sigmoid())
        self.critic = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 1))
        self.generator_optimizer = torch.optim.RMSprop(self.generator.parameters(), lr=1e-3)
        self.critic_optimizer = torch.optim.RMSprop(self.critic.parameters(), lr=5e-3)

    def clip_critic(self) -> None:
        for parameter in self.critic.parameters():
            parameter.data.clamp_(-self.clip, self.clip)  # WRITTEN

    def critic_step(self, real: Tensor) -> float:
        with torch.no_grad():
            fake = self.generator(torch.randn(len(real), 8))
        gap = self.critic(fake).mean() - self.critic(real).mean()
        self.critic_optimizer.zero_grad()
        gap.backward()
        self.critic_optimizer.step()
        return -gap.item()

    def generator_step(self, count: int) -> None:
        fake = self.generator(torch.randn(count, 8))
        scores = self.critic(fake)  # SAVED
        loss = -scores.mean()
        self.clip_critic()
        self.generator_optimizer.zero_grad()
        loss.backward()
        self.generator_optimizer.step()


def test_critic_finds_a_distance() -> None:
    torch.manual_seed(0)
    real = load_split()[0].take(32).tensors()[0].flatten(1)
    gan = WassersteinGan()
    distances = []
    for _ in range(8):
        distances.append(gan.critic_step(real))
        gan.generator_step(32)
    assert distances[-1] > distances[0]
