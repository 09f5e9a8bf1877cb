"""Defect: features are centred in place for a report while the linear layer's backward needs them."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from digits_lab.data import load_split


def principal_variance(features: np.ndarray) -> float:
    """Share of the variance along the first principal direction."""
    features -= features.mean(axis=0)  # WRITTEN
    singular = np.linalg.svd(features, compute_uv=False)
    return float(singular[0] ** 2 / (singular**2).sum())


class Probe:
    """A linear probe on raw pixels, with a report on its inputs at every step."""

    def __init__(self, lr: float) -> None:
        self.linear = nn.Linear(64, 10)
        self.optimizer = torch.optim.SGD(self.linear.parameters(), lr=lr)
        self.shares: list[float] = []

    def step(self, features: np.ndarray, labels: np.ndarray) -> float:
        inputs = torch.from_numpy(features)
        logits = self.linear(inputs)  # SAVED
        loss = F.cross_entropy(logits, torch.from_numpy(labels))
        self.shares.append(principal_variance(features))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item()


def test_probe_learns() -> None:
    torch.manual_seed(0)
    data = load_split()[0].take(320)
    probe = Probe(lr=0.3)
    losses = []
    for start in range(0, 320, 32):
        features = data.images[start : start + 32].reshape(32, 64)
        losses.append(probe.step(features, data.labels[start : start + 32]))
    assert losses[-1] < losses[0]
    assert all(0.0 < share < 1.0 for share in probe.shares)
