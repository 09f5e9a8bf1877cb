"""What the programs that are run with and without the plugin have in common."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

import numpy
import pytest
import torch
from torch import nn


@pytest.fixture(autouse=True)
def seeds(record: Callable[..., None]) -> Iterator[None]:
    """Begin with the same random numbers, and note those that come after the test."""
    random.seed(1)
    numpy.random.seed(2)
    torch.manual_seed(3)
    yield
    record(random.random(), numpy.random.rand(), torch.rand(1))


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))


def train(model: nn.Module, steps: int = 3) -> list[nn.Parameter]:
    optimizer = torch.optim.Adam(model.parameters(), 0.01)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(5, 4)).square().mean().backward()
        optimizer.step()
    return list(model.parameters())


def f(x: torch.Tensor) -> torch.Tensor:
    return (x.exp() * x).sin().sum()
