"""Defect: a tied embedding is renormalised through `.data` before the output layer's backward has used it."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from digits_lab.data import load_split, quantise


class TiedPixelModel(nn.Module):
    """Predicts the next pixel from the last one; the embedding is also the output layer."""

    def __init__(self, levels: int = 17, width: int = 16, max_norm: float = 1.0) -> None:
        super().__init__()
        self.max_norm = max_norm
        self.table = nn.Embedding(levels, width)
        self.mix = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        hidden = torch.tanh(self.mix(self.table(tokens)))
        return hidden @ self.table.weight.t()  # SAVED

    def renormalise(self) -> None:
        """Shrink the rows that have grown longer than `max_norm`."""
        self.table.weight.data.renorm_(2, 0, self.max_norm)  # WRITTEN


def train(model: TiedPixelModel, tokens: Tensor, steps: int) -> list[float]:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        logits = model(tokens[:, :-1])
        model.renormalise()
        loss = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_next_pixel_loss_falls() -> None:
    torch.manual_seed(0)
    tokens = quantise(load_split()[0].take(16).tensors()[0])
    losses = train(TiedPixelModel(), tokens, steps=15)
    assert losses[-1] < 0.9 * losses[0]
