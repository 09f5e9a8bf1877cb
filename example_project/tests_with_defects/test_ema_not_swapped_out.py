"""Defect: averaged weights are swapped in to monitor accuracy, and are still there when backward runs."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from digits_lab.data import load_split
from digits_lab.losses import accuracy


class Average:
    """Averaged copies of the parameters."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.values = [p.detach().clone() for p in model.parameters()]

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        for value, parameter in zip(self.values, model.parameters(), strict=True):
            value.lerp_(parameter, 1.0 - self.decay)

    def swap_in(self, model: nn.Module) -> None:
        for value, parameter in zip(self.values, model.parameters(), strict=True):
            parameter.data.copy_(value)  # WRITTEN


def train(model: nn.Module, images: Tensor, labels: Tensor, steps: int) -> list[float]:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    average = Average(model, decay=0.3)
    scores = []
    for step in range(steps):
        logits = model(images)  # SAVED
        loss = F.cross_entropy(logits, labels)
        if step % 5 == 4:
            average.swap_in(model)
            with torch.no_grad():
                scores.append(accuracy(model(images), labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        average.update(model)
    return scores


def test_monitored_accuracy_rises() -> None:
    torch.manual_seed(0)
    images, labels = load_split()[0].take(64).tensors()
    model = nn.Sequential(nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 10))
    scores = train(model, images.flatten(1), labels, steps=20)
    assert scores[-1] > scores[0]
