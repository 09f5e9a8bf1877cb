"""Defect: rows are centred in place through the views that `unbind` made of them all at once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from digits_lab.data import load_split


class CentredRows(nn.Module):
    """Projects each row of a digit and centres the projection over the batch."""

    def __init__(self, width: int = 6) -> None:
        super().__init__()
        self.project = nn.Linear(8, width)
        self.head = nn.Linear(8 * width, 10)

    def forward(self, rows: Tensor) -> Tensor:
        projected = self.project(rows)
        for row in projected.unbind(1):
            row -= row.mean(dim=0)  # WRITTEN
        return self.head(projected.flatten(1))


def test_centred_rows_train() -> None:
    torch.manual_seed(0)
    images, labels = load_split()[0].take(32).tensors()
    model = CentredRows()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(5):
        loss = F.cross_entropy(model(images.squeeze(1)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
