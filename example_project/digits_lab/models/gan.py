"""A generator and a discriminator of digits, and their training step."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from digits_lab.data import SIDE
from digits_lab.functions import leaky_relu_
from digits_lab.losses import hinge_discriminator_loss, hinge_generator_loss


class Generator(nn.Module):
    """Latent vectors to images in [0, 1]."""

    def __init__(self, latent: int = 8, hidden: int = 48) -> None:
        super().__init__()
        self.latent = latent
        self.expand = nn.Linear(latent, hidden, bias=False)
        self.norm = nn.BatchNorm1d(hidden)
        self.paint = nn.Linear(hidden, SIDE * SIDE)

    def forward(self, z: Tensor) -> Tensor:
        hidden = torch.relu_(self.norm(self.expand(z)))
        return self.paint(hidden).sigmoid_().view(-1, 1, SIDE, SIDE)

    def sample(self, count: int) -> Tensor:
        """Images from standard normal latents."""
        return self(torch.randn(count, self.latent))


class Discriminator(nn.Module):
    """Images to one unbounded score each."""

    def __init__(self, hidden: int = 48) -> None:
        super().__init__()
        self.first = nn.Linear(SIDE * SIDE, hidden)
        self.second = nn.Linear(hidden, hidden)
        self.score = nn.Linear(hidden, 1)

    def forward(self, images: Tensor) -> Tensor:
        hidden = leaky_relu_(self.first(images.flatten(1)))
        hidden = leaky_relu_(self.second(hidden))
        return self.score(hidden).squeeze(-1)


@contextmanager
def frozen(module: nn.Module) -> Iterator[None]:
    """Switch off the gradients of a module's parameters for the block."""
    flags = [p.requires_grad for p in module.parameters()]
    module.requires_grad_(False)
    try:
        yield
    finally:
        for parameter, flag in zip(module.parameters(), flags, strict=True):
            parameter.requires_grad_(flag)


class GanTrainer:
    """Alternates discriminator and generator steps.

    Each loss gets its own forward pass through the discriminator, after the other network's step.
    """

    def __init__(self, generator: Generator, discriminator: Discriminator, lr: float = 2e-3, **options: bool):
        self.generator = generator
        self.discriminator = discriminator
        self.generator_optimizer = torch.optim.Adam(generator.parameters(), lr, betas=(0.5, 0.9), **options)
        self.discriminator_optimizer = torch.optim.Adam(
            discriminator.parameters(), lr, betas=(0.5, 0.9), **options
        )

    def step(self, real: Tensor) -> tuple[float, float]:
        """One step of each network; returns the two losses."""
        fake = self.generator.sample(len(real))
        discriminator_loss = hinge_discriminator_loss(
            self.discriminator(real), self.discriminator(fake.detach())
        )
        self.discriminator_optimizer.zero_grad()
        discriminator_loss.backward()
        self.discriminator_optimizer.step()

        with frozen(self.discriminator):
            generator_loss = hinge_generator_loss(self.discriminator(fake))
        self.generator_optimizer.zero_grad()
        generator_loss.backward()
        self.generator_optimizer.step()
        return discriminator_loss.item(), generator_loss.item()
