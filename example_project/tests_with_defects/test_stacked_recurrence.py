"""Defect: layer states live in one tensor whose slices are overwritten after a product has saved them.

The test only looks at the forward pass, so nothing is wrong yet: the first backward will fail.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from digits_lab.data import load_split


class StackedRNN(nn.Module):
    """A stack of recurrent layers over rows of pixels; one tensor holds the states of all layers."""

    def __init__(self, layers: int = 2, width: int = 12) -> None:
        super().__init__()
        self.width = width
        self.read = nn.Linear(8, width)
        self.recurrent = nn.Parameter(torch.randn(layers, width, width) / width**0.5)
        self.head = nn.Linear(width, 10)

    def forward(self, rows: Tensor) -> tuple[Tensor, Tensor]:
        state = torch.zeros(len(self.recurrent), len(rows), self.width)
        for row in rows.unbind(1):
            below = self.read(row)
            for layer, weight in enumerate(self.recurrent):
                carried = state[layer] @ weight  # SAVED
                below = torch.tanh(below + carried)
                state[layer] = below  # WRITTEN
        return self.head(state[-1]), state


def test_states_stay_bounded() -> None:
    torch.manual_seed(0)
    images, _ = load_split()[0].take(16).tensors()
    logits, state = StackedRNN()(images.squeeze(1))
    assert logits.shape == (16, 10)
    assert state.abs().max() <= 1.0
    assert not torch.equal(state[0], state[1])
