"""Defect: a convolution is pruned by a new `.data` between the forward and the backward pass."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from digits_lab.data import load_split


class PrunedCNN(nn.Module):
    """Two convolutions; the wide second one is pruned gradually."""

    def __init__(self, channels: int = 8) -> None:
        super().__init__()
        self.narrow = nn.Conv2d(1, channels, kernel_size=3, padding=1)
        self.wide = nn.Conv2d(channels, channels, kernel_size=3, padding=1)
        self.head = nn.Linear(channels, 10)

    def forward(self, images: Tensor) -> Tensor:
        hidden = F.gelu(self.narrow(images))
        hidden = self.wide(hidden)  # SAVED
        return self.head(F.gelu(hidden).amax(dim=(2, 3)))


def prune(conv: nn.Conv2d, fraction: float) -> None:
    """Drop the smallest weights."""
    weight = conv.weight.detach()
    threshold = weight.abs().flatten().quantile(fraction)
    conv.weight.data = torch.where(weight.abs() > threshold, weight, 0.0)  # WRITTEN


def test_pruned_network_learns() -> None:
    torch.manual_seed(0)
    images, labels = load_split()[0].take(64).tensors()
    model = PrunedCNN()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-2)
    losses = []
    for step in range(12):
        loss = F.cross_entropy(model(images), labels)
        prune(model.wide, fraction=min(0.5, 0.3 + 0.02 * step))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
