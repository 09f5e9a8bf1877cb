import torch
from torch import nn


def test_two_losses():
    net = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1, bias=False))
    for layer in net:
        nn.init.ones_(layer.weight)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.25)
    x = torch.ones(1, 2)
    first, second = net(x).sum(), net(2 * x).sum()
    first.backward()
    optimizer.step()
    second.backward()
