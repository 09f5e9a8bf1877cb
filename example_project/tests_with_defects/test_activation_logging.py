"""Defect: the activations that go to the histogram log are rescaled in the memory autograd still needs."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from digits_lab.data import load_split


class HistogramLog:
    """Histograms of activations on a common scale."""

    def __init__(self, bins: int = 16) -> None:
        self.bins = bins
        self.rows: list[np.ndarray] = []

    def add(self, values: np.ndarray) -> None:
        values *= 1.0 / np.abs(values).max()  # WRITTEN
        counts, _ = np.histogram(values, bins=self.bins, range=(-1.0, 1.0))
        self.rows.append(counts)


class LoggedClassifier(nn.Module):
    """A two-layer classifier that logs its hidden activations on every pass."""

    def __init__(self, log: HistogramLog) -> None:
        super().__init__()
        self.hidden = nn.Linear(64, 32)
        self.head = nn.Linear(32, 10)
        self.log = log

    def forward(self, images: Tensor) -> Tensor:
        activations = F.gelu(self.hidden(images.flatten(1)))
        logits = self.head(activations)  # SAVED
        self.log.add(activations.detach().numpy())
        return logits


def test_logged_classifier_learns() -> None:
    torch.manual_seed(0)
    images, labels = load_split()[0].take(64).tensors()
    log = HistogramLog()
    model = LoggedClassifier(log)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    losses = []
    for _ in range(10):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    assert sum(log.rows[0]) == 64 * 32
