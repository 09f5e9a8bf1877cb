import torch
from torch import nn


class Logger:
    def write(self, features):
        table = features.detach().numpy()
        table -= table.mean(axis=0)


def test_logged_step():
    encoder = nn.Linear(2, 2, bias=False)
    nn.init.eye_(encoder.weight)
    features = encoder(torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    loss = features.square().sum()
    Logger().write(features)
    loss.backward()
