"""Defect: the skip connection is added in place to the ReLU's output, which ReLU's backward needs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from digits_lab.data import load_split


class ResidualLayer(nn.Module):
    """Linear, norm and activation, with the input added to the result."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.norm = nn.LayerNorm(width)

    def forward(self, x: Tensor) -> Tensor:
        out = self.norm(self.linear(x))
        out = torch.relu(out)  # SAVED
        out += x  # WRITTEN
        return out


class ResidualClassifier(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.embed = nn.Linear(64, width)
        self.layer = ResidualLayer(width)
        self.head = nn.Linear(width, 10)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.layer(self.embed(images.flatten(1))))


def test_residual_classifier_trains() -> None:
    torch.manual_seed(0)
    images, labels = load_split()[0].take(64).tensors()
    model = ResidualClassifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(5):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
