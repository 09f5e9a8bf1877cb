"""Loss functions shared by the training loops."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float = 0.1) -> Tensor:
    """Cross entropy against labels that keep `smoothing` of their mass for the other classes."""
    classes = logits.shape[-1]
    target = torch.full_like(logits, smoothing / (classes - 1))
    target.scatter_(-1, labels.unsqueeze(-1), 1.0 - smoothing)
    return -(target * F.log_softmax(logits.float(), dim=-1)).sum(-1).mean()


def next_token_loss(logits: Tensor, tokens: Tensor) -> Tensor:
    """Cross entropy of each token, given the logits at its own position of a shifted input."""
    return F.cross_entropy(logits.flatten(0, 1).float(), tokens.flatten())


def hinge_discriminator_loss(real: Tensor, fake: Tensor) -> Tensor:
    """Push real scores above 1 and fake ones below -1.

    The margins are built in place: neither addition nor negation needs its input again.
    """
    real_gap = (-real).add_(1.0).relu_()
    fake_gap = (fake + 1.0).relu_()
    return real_gap.mean() + fake_gap.mean()


def hinge_generator_loss(fake: Tensor) -> Tensor:
    """Raise the score of the generated images."""
    return -fake.mean()


def policy_loss(
    log_probs: Tensor, advantage: Tensor, entropy: Tensor, entropy_weight: float = 0.01
) -> Tensor:
    """REINFORCE with a baseline; the advantage is a constant for the actor."""
    weights = advantage.detach().clone()
    weights -= weights.mean()
    weights /= weights.std().clamp_min_(1e-6)
    return -(weights * log_probs).mean() - entropy_weight * entropy.mean()


@torch.no_grad()
def accuracy(logits: Tensor, labels: Tensor) -> float:
    """Fraction of examples whose largest logit is the label's."""
    return (logits.argmax(-1) == labels).float().mean().item()
