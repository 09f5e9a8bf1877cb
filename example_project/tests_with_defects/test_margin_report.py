"""Defect: the true class's probability is blanked in place although softmax's backward needs it.

The report never calls backward, so nothing is wrong yet: a loss on the margins would fail.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from digits_lab.data import load_split


class MarginReport:
    """How far the true class is ahead of the runner-up, over all batches seen."""

    def __init__(self) -> None:
        self.margins: list[Tensor] = []

    def add(self, logits: Tensor, labels: Tensor) -> Tensor:
        """Record a batch and return its margins."""
        rows = torch.arange(len(labels))
        probabilities = logits.softmax(dim=1)  # SAVED
        true = probabilities[rows, labels]
        probabilities[rows, labels] = 0.0  # WRITTEN
        margins = true - probabilities.amax(dim=1)
        self.margins.append(margins.detach())
        return margins

    def mean(self) -> float:
        return torch.cat(self.margins).mean().item()


def test_margins_of_an_untrained_model_are_small() -> None:
    torch.manual_seed(0)
    data = load_split()[0].take(64)
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10))
    report = MarginReport()
    images, labels = data.tensors()
    for rows in torch.arange(64).chunk(4):
        margins = report.add(model(images[rows]), labels[rows])
        assert margins.shape == (16,)
    assert -0.3 < report.mean() < 0.3
