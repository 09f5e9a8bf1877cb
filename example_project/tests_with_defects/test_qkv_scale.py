"""Defect: the query is scaled in place although it's one of several views that `chunk` made at once."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from digits_lab.data import load_split


class RowAttention(nn.Module):
    """Single-head attention among the rows of a digit."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.qkv = nn.Linear(width, 3 * width)
        self.head = nn.Linear(width, 10)
        self.scale = width**-0.5

    def forward(self, rows: Tensor) -> Tensor:
        qkv = self.qkv(self.embed(rows))
        q, k, v = qkv.chunk(3, dim=-1)
        q *= self.scale  # WRITTEN
        weights = (q @ k.transpose(1, 2)).softmax(dim=-1)
        return self.head((weights @ v).mean(dim=1))


def test_row_attention_trains() -> None:
    torch.manual_seed(0)
    images, labels = load_split()[0].take(32).tensors()
    model = RowAttention()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(5):
        loss = F.cross_entropy(model(images.squeeze(1)), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
