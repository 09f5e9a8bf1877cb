"""Defect: losses are summed over micro-batches that share a staging buffer, with one backward at the end."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from digits_lab.data import Digits, load_split


def staged_batches(data: Digits, size: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Views of one preallocated buffer, refilled for every batch."""
    buffer = np.empty((size, 64), dtype=np.float32)
    staged = torch.from_numpy(buffer)
    for start in range(0, len(data), size):
        rows = data.images[start : start + size].reshape(size, 64)
        np.copyto(buffer, rows)  # WRITTEN
        yield staged, torch.tensor(data.labels[start : start + size])


def accumulated_step(model: nn.Module, optimizer: torch.optim.Optimizer, data: Digits, size: int) -> float:
    """One optimizer step on the mean loss of all the micro-batches."""
    losses = []
    for images, labels in staged_batches(data, size):
        logits = model(images)  # SAVED
        losses.append(F.cross_entropy(logits, labels))
    loss = torch.stack(losses).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()


def test_accumulated_steps_lower_the_loss() -> None:
    torch.manual_seed(0)
    data = load_split()[0].take(96)
    model = nn.Linear(64, 10)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    losses = [accumulated_step(model, optimizer, data, 24) for _ in range(10)]
    assert losses[-1] < losses[0]
