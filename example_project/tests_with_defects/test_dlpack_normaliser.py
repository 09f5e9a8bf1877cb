"""Defect: a consumer of a DLPack export standardises the codes in the memory it shares with autograd."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from digits_lab.data import load_split


class CodeMonitor:
    """Tracks how many units of the code are active; takes anything that speaks DLPack."""

    def __init__(self) -> None:
        self.active: list[float] = []

    def observe(self, codes: Any) -> None:
        block = np.from_dlpack(codes)
        scale = np.abs(block).max()
        block /= scale  # WRITTEN
        self.active.append(float((np.abs(block) > 0.1).mean()))


class Autoencoder(nn.Module):
    def __init__(self, code: int = 12) -> None:
        super().__init__()
        self.encoder = nn.Linear(64, code)
        self.decoder = nn.Linear(code, 64)

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        codes = self.encoder(pixels)
        restored = self.decoder(codes)  # SAVED
        return restored, codes


def test_autoencoder_learns() -> None:
    torch.manual_seed(0)
    pixels = load_split()[0].take(64).tensors()[0].flatten(1)
    model, monitor = Autoencoder(), CodeMonitor()
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(15):
        restored, codes = model(pixels)
        loss = F.mse_loss(restored, pixels)
        monitor.observe(codes.detach())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.7 * losses[0]
    assert len(monitor.active) == 15
