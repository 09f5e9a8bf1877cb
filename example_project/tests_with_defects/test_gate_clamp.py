"""Defect: gates are kept away from 0 and 1 through `.data`, after sigmoid saved them for its backward."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from digits_lab.data import load_split


class HighwayLayer(nn.Module):
    """Mixes its input with a transformed copy; a gate for each unit decides how much of which."""

    def __init__(self, width: int, margin: float = 0.2) -> None:
        super().__init__()
        self.margin = margin
        self.transform = nn.Linear(width, width)
        self.gate = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        proposal = F.gelu(self.transform(x))
        gate = torch.sigmoid(4.0 * self.gate(x))  # SAVED
        # No gate may close or open completely.
        gate.data.clamp_(self.margin, 1.0 - self.margin)  # WRITTEN
        return x + gate * (proposal - x)


def train(model: nn.Module, steps: int) -> list[float]:
    images, labels = load_split()[0].take(64).tensors()
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    losses = []
    for _ in range(steps):
        loss = F.cross_entropy(model(images.flatten(1)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_highway_network_learns() -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 24), HighwayLayer(24), nn.Linear(24, 10))
    losses = train(model, steps=15)
    assert losses[-1] < 0.8 * losses[0]
