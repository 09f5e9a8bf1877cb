"""Defect: the hidden state is decayed through `.data` after tanh saved it for its backward."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from digits_lab.data import load_split


class LeakyRNN(nn.Module):
    """An Elman network over rows of pixels whose state leaks between the rows."""

    def __init__(self, hidden: int = 24, leak: float = 0.3) -> None:
        super().__init__()
        self.leak = leak
        self.read = nn.Linear(8, hidden)
        self.recur = nn.Linear(hidden, hidden, bias=False)
        self.head = nn.Linear(hidden, 10)

    def forward(self, rows: Tensor) -> Tensor:
        state = torch.zeros(len(rows), self.recur.in_features)
        for row in rows.unbind(1):
            update = self.read(row) + self.recur(state)
            state = torch.tanh(2.0 * update)  # SAVED
            state.data.mul_(1.0 - self.leak)  # WRITTEN
        return self.head(state)


def train(model: nn.Module, steps: int) -> list[float]:
    images, labels = load_split()[0].take(64).tensors()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(steps):
        loss = F.cross_entropy(model(images.squeeze(1)), labels)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_leaky_rnn_learns() -> None:
    torch.manual_seed(0)
    losses = train(LeakyRNN(), steps=15)
    assert losses[-1] < 0.8 * losses[0]
