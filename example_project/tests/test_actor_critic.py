"""The actor-critic agent: two losses on one graph."""

from __future__ import annotations

import copy

import torch

from digits_lab.data import Batch
from digits_lab.models import ActorCritic
from digits_lab.models.actor_critic import joint_step, soft_update


def test_retained_graph_gives_the_gradient_of_the_sum(batch: Batch) -> None:
    agent = ActorCritic()
    losses = agent.losses(*batch)
    losses.actor.backward(retain_graph=True)
    agent.trunk.weight.grad *= 1.0
    losses.critic.backward(retain_graph=True)
    expected = torch.autograd.grad(losses.actor + losses.critic, list(agent.parameters()))
    for parameter, gradient in zip(agent.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)


def test_joint_steps_raise_the_reward(batch: Batch) -> None:
    agent = ActorCritic()
    optimizer = torch.optim.Adam(agent.parameters(), lr=2e-2, foreach=True)
    rewards = [joint_step(agent, optimizer, *batch) for _ in range(120)]
    assert sum(rewards[-20:]) > 1.5 * sum(rewards[:20])


def test_soft_update_moves_the_target(batch: Batch) -> None:
    """The target scores under no_grad, so it may be updated while the agent's graph waits."""
    agent = ActorCritic()
    target = copy.deepcopy(agent).requires_grad_(False)
    agent.trunk.weight.data.add_(1.0)
    with torch.no_grad():
        _, baseline = target(batch[0])
    _, value = agent(batch[0])
    loss = (value - baseline).square().mean()
    soft_update(target, agent, 0.25)
    loss.backward()
    torch.testing.assert_close(agent.trunk.weight.detach() - 0.75, target.trunk.weight)
    assert agent.value.weight.grad is not None
