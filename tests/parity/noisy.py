"""Small models on a device that sums in another order, in two precisions; run by ``test_noise.py``."""

from __future__ import annotations

import os
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional as F


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner, self.out = nn.MultiheadAttention(16, 4, batch_first=True), nn.Linear(16, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.inner(x, x, x, need_weights=False)[0]).mean(1)


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.Module]) -> None:
        super().__init__()
        self.inner, self.out = kind(16, 12, 2), nn.Linear(12, 4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.inner(x.transpose(0, 1))[0][-1])


class Residual(nn.Module):
    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.inner = nn.Sequential(*layers)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


def mlp(activation: Callable[[], nn.Module], *norm: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(64, 32), *norm, activation(), nn.Dropout(0.2), nn.Linear(32, 4))


def cnn(norm: nn.Module, activation: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Conv2d(2, 8, 3, padding=1), norm, activation, nn.MaxPool2d(2),
                         nn.Conv2d(8, 8, 3), nn.Flatten(), nn.Linear(8, 4))  # fmt: skip


IMAGE, FLAT, SEQUENCE = (6, 2, 6, 6), (16, 64), (6, 5, 16)
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "linear": (lambda: nn.Linear(64, 4), FLAT),
    "relu": (lambda: mlp(nn.ReLU), FLAT),
    "gelu": (lambda: mlp(nn.GELU), FLAT),
    "tanh": (lambda: mlp(nn.Tanh), FLAT),
    "silu": (lambda: mlp(nn.SiLU), FLAT),
    "softplus": (lambda: mlp(nn.Softplus), FLAT),
    "leaky": (lambda: mlp(nn.LeakyReLU), FLAT),
    "elu": (lambda: mlp(nn.ELU), FLAT),
    "batch_norm": (lambda: mlp(nn.ReLU, nn.BatchNorm1d(32)), FLAT),
    "layer_norm": (lambda: mlp(nn.GELU, nn.LayerNorm(32)), FLAT),
    "deep": (lambda: nn.Sequential(*(Residual(nn.Linear(64, 64), nn.Tanh()) for _ in range(8)),
                                   nn.Linear(64, 4)), FLAT),
    "cnn_batch_norm": (lambda: cnn(nn.BatchNorm2d(8), nn.ReLU()), IMAGE),
    "cnn_group_norm": (lambda: cnn(nn.GroupNorm(2, 8), nn.SiLU()), IMAGE),
    "cnn_instance_norm": (lambda: cnn(nn.InstanceNorm2d(8, affine=True), nn.ReLU()), IMAGE),
    "strided": (lambda: nn.Sequential(nn.Conv2d(2, 6, 3, stride=2), nn.ReLU(), nn.AvgPool2d(2), nn.Flatten(),
                                      nn.Linear(6, 4)), IMAGE),
    "lstm": (lambda: Recurrent(nn.LSTM), SEQUENCE),
    "gru": (lambda: Recurrent(nn.GRU), SEQUENCE),
    "rnn": (lambda: Recurrent(nn.RNN), SEQUENCE),
    "attention": (Attention, SEQUENCE),
    "transformer": (lambda: nn.Sequential(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True),
                                          Attention()), SEQUENCE),
}  # fmt: skip
SEEDS = range(10) if os.environ.get("PYTEST_INPLACE_EXHAUSTIVE") else range(1)


@pytest.mark.fault("other_sums")
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize("name", sorted(MODELS))
def test_training(name: str, dtype: torch.dtype, seed: int) -> None:
    torch.manual_seed(seed)
    make, shape = MODELS[name]
    model = make().to(dtype)
    optimizer = (torch.optim.Adam if seed % 2 else torch.optim.SGD)(model.parameters(), lr=0.01)
    for _ in range(3):
        loss = F.cross_entropy(model(torch.randn(shape, dtype=dtype)), torch.randint(0, 4, shape[:1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
