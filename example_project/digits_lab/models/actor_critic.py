"""An actor-critic agent for a one-step game: name the digit, win a point."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from digits_lab.data import CLASSES, SIDE
from digits_lab.losses import policy_loss


@dataclass(frozen=True)
class Losses:
    """The actor's and the critic's loss, on one shared graph."""

    actor: Tensor
    critic: Tensor
    reward: float


class ActorCritic(nn.Module):
    """A shared trunk with a policy head and a value head."""

    def __init__(self, hidden: int = 32) -> None:
        super().__init__()
        self.trunk = nn.Linear(SIDE * SIDE, hidden)
        self.policy = nn.Linear(hidden, CLASSES)
        self.value = nn.Linear(hidden, 1)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        hidden = torch.tanh(self.trunk(images.flatten(1)))
        return self.policy(hidden), self.value(hidden).squeeze(-1)

    def losses(self, images: Tensor, labels: Tensor) -> Losses:
        """Play one round for each image and score both heads."""
        logits, value = self(images)
        policy = torch.distributions.Categorical(logits=logits)
        action = policy.sample()
        reward = (action == labels).float()
        actor = policy_loss(policy.log_prob(action), reward - value, policy.entropy())
        critic = F.mse_loss(value, reward)
        return Losses(actor, critic, reward.mean().item())


def joint_step(agent: ActorCritic, optimizer: torch.optim.Optimizer, images: Tensor, labels: Tensor) -> float:
    """Backward of both losses through the shared trunk, and only then the step."""
    losses = agent.losses(images, labels)
    optimizer.zero_grad()
    losses.actor.backward(retain_graph=True)
    losses.critic.backward()
    nn.utils.clip_grad_norm_(agent.parameters(), 1.0)
    optimizer.step()
    return losses.reward


@torch.no_grad()
def soft_update(target: nn.Module, source: nn.Module, rate: float) -> None:
    """Move the target's parameters a little towards the source's."""
    for old, new in zip(target.parameters(), source.parameters(), strict=True):
        old.mul_(1.0 - rate).add_(new, alpha=rate)
