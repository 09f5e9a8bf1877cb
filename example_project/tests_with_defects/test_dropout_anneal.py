"""Defect: a dropout mask is redrawn in its NumPy buffer while the product's backward still needs it."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from digits_lab.data import load_split


class BufferedDropout(nn.Module):
    """Dropout whose masks come from one NumPy buffer, redrawn after each use with a falling rate."""

    def __init__(self, rows: int, width: int, rate: float) -> None:
        super().__init__()
        self.rate = rate
        self.random = np.random.default_rng(0)
        self.buffer = np.ones((rows, width), dtype=np.float32)

    def redraw(self) -> None:
        keep = self.random.random(self.buffer.shape) >= self.rate
        self.buffer[:] = keep / (1.0 - self.rate)  # WRITTEN
        self.rate *= 0.95

    def forward(self, x: Tensor) -> Tensor:
        out = x * torch.from_numpy(self.buffer)  # SAVED
        self.redraw()
        return out


def train(model: nn.Module, steps: int) -> list[float]:
    images, labels = load_split()[0].take(64).tensors()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        loss = F.cross_entropy(model(images.flatten(1)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_network_with_dropout_learns() -> None:
    torch.manual_seed(0)
    dropout = BufferedDropout(rows=64, width=32, rate=0.5)
    model = nn.Sequential(nn.Linear(64, 32), nn.GELU(), dropout, nn.Linear(32, 10))
    losses = train(model, steps=20)
    assert losses[-1] < 0.8 * losses[0]
