"""Data and seeds shared by the tests."""

from __future__ import annotations

import pytest
import torch

from digits_lab.data import Batch, Digits, load_split


@pytest.fixture(autouse=True)
def seed() -> None:
    """Every test starts from the same random state."""
    torch.manual_seed(0)


@pytest.fixture(scope="session")
def split() -> tuple[Digits, Digits]:
    return load_split()


@pytest.fixture(scope="session")
def train(split: tuple[Digits, Digits]) -> Digits:
    return split[0]


@pytest.fixture(scope="session")
def held_out(split: tuple[Digits, Digits]) -> Digits:
    return split[1].take(100)


@pytest.fixture
def batch(train: Digits) -> Batch:
    """Sixteen images and labels of the test's own."""
    return train.take(16).tensors()
