"""The GAN's alternating steps."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from digits_lab.data import Batch
from digits_lab.losses import hinge_discriminator_loss, hinge_generator_loss
from digits_lab.models import Discriminator, Generator
from digits_lab.models.gan import GanTrainer, frozen


@pytest.fixture
def pair() -> Iterator[tuple[Generator, Discriminator]]:
    """Both networks; afterwards no parameter may be left frozen."""
    generator, discriminator = Generator(), Discriminator()
    yield generator, discriminator
    assert all(p.requires_grad for p in [*generator.parameters(), *discriminator.parameters()])


def test_hinge_loss_in_place_matches_the_formula() -> None:
    real = torch.randn(8, requires_grad=True)
    fake = torch.randn(8, requires_grad=True)
    loss = hinge_discriminator_loss(real * 1.0, fake * 1.0)
    reference = (1 - real).clamp(min=0).mean() + (1 + fake).clamp(min=0).mean()
    got = torch.autograd.grad(loss, (real, fake))
    expected = torch.autograd.grad(reference, (real, fake))
    torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("options", [{"fused": True}, {"foreach": True}], ids=str)
def test_steps_teach_the_discriminator(
    pair: tuple[Generator, Discriminator], batch: Batch, options: dict[str, bool]
) -> None:
    trainer = GanTrainer(*pair, **options)
    losses = [trainer.step(batch[0]) for _ in range(12)]
    assert losses[-1][0] < losses[0][0]


def test_generator_backward_leaves_a_frozen_discriminator_alone(
    pair: tuple[Generator, Discriminator],
) -> None:
    generator, discriminator = pair
    with frozen(discriminator):
        loss = hinge_generator_loss(discriminator(generator.sample(8)))
    loss.backward()
    assert all(p.grad is None for p in discriminator.parameters())
    assert all(p.grad is not None for p in generator.parameters())
