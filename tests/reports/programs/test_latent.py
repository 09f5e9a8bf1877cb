import torch
from torch import nn


class Recurrence(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(2, 2, bias=False)
        nn.init.eye_(self.mix.weight)

    def forward(self, x):
        state = torch.zeros(3, 2)
        for t in range(x.shape[0]):
            carried = self.mix(state[t % 3])
            state[t % 3] = carried + x[t]
        return state


def test_shape():
    assert Recurrence()(torch.ones(4, 2)).shape == (3, 2)
