import torch
from torch import nn


class Pair:
    def __init__(self):
        self.critic = nn.Linear(2, 1, bias=False)
        self.actor = nn.Linear(2, 2, bias=False)
        nn.init.ones_(self.critic.weight)
        nn.init.eye_(self.actor.weight)
        self.optimizer = torch.optim.SGD(self.critic.parameters(), lr=0.5, fused=True)

    def step(self, x):
        actor_loss = -self.critic(self.actor(x)).sum()
        critic_loss = self.critic(x).square().sum()
        critic_loss.backward()
        self.optimizer.step()
        actor_loss.backward()


def test_step():
    pair = Pair()
    pair.step(torch.tensor([[1.0, 1.0]]))
    assert pair.actor.weight.grad is not None
