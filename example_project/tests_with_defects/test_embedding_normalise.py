"""Defect: an embedding is divided in place by its own norm, whose backward needs the undivided values."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from digits_lab.data import load_split


class UnitEmbedding(nn.Module):
    """Embeds digits on the unit sphere and compares them with class prototypes."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.project = nn.Linear(64, width)
        self.prototypes = nn.Linear(width, 10, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        code = self.project(images.flatten(1))
        length = code.norm(dim=1, keepdim=True)  # SAVED
        code /= length  # WRITTEN
        return self.prototypes(code)


def test_unit_embedding_trains() -> None:
    torch.manual_seed(0)
    images, labels = load_split()[0].take(32).tensors()
    model = UnitEmbedding()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(5):
        loss = F.cross_entropy(model(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
