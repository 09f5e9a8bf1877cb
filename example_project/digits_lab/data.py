"""The 8x8 digits that ship with scikit-learn: splits, batches and a reusable staging buffer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

SIDE = 8
LEVELS = 17  # the pixels are integers from 0 to 16
CLASSES = 10

Batch = tuple[Tensor, Tensor]


@dataclass(frozen=True)
class Digits:
    """Images in [0, 1] with shape (N, 8, 8), and their labels."""

    images: np.ndarray
    labels: np.ndarray

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, count: int) -> Digits:
        """The first `count` examples."""
        return Digits(self.images[:count], self.labels[:count])

    def tensors(self) -> Batch:
        """Copies as tensors; images get a channel dimension."""
        return torch.tensor(self.images).unsqueeze(1), torch.tensor(self.labels)


def load_split(test_fraction: float = 0.2, seed: int = 0) -> tuple[Digits, Digits]:
    """Shuffle once with `seed` and split into train and test."""
    raw = load_digits()
    images = raw.images.astype(np.float32)
    images /= LEVELS - 1
    labels = raw.target.astype(np.int64)
    order = np.random.default_rng(seed).permutation(len(labels))
    cut = int(len(labels) * (1 - test_fraction))
    train, test = order[:cut], order[cut:]
    return Digits(images[train], labels[train]), Digits(images[test], labels[test])


def quantise(images: Tensor) -> Tensor:
    """Pixels as integer tokens, one row of 64 per image, for the sequence models."""
    tokens = images.flatten(1).mul(LEVELS - 1)
    return tokens.round_().long()


def iterate_batches(data: Digits, batch_size: int, seed: int | None = None) -> Iterator[Batch]:
    """Fresh tensors for each batch, shuffled when `seed` is given; the short last batch is kept."""
    order = np.arange(len(data))
    if seed is not None:
        np.random.default_rng(seed).shuffle(order)
    for start in range(0, len(order), batch_size):
        index = order[start : start + batch_size]
        yield torch.from_numpy(data.images[index]).unsqueeze(1), torch.from_numpy(data.labels[index])


class StagingLoader:
    """Batches through one pair of NumPy buffers, so that an epoch allocates nothing.

    The tensors it yields are views of the buffers: finish with a batch, backward included, before asking
    for the next one. A seed of None keeps the order of the data.
    """

    def __init__(self, data: Digits, batch_size: int, noise: float = 0.0, seed: int | None = 0) -> None:
        self.data = data
        self.batch_size = batch_size
        self.noise = noise
        self.shuffle = seed is not None
        self._random = np.random.default_rng(seed)
        self.images = np.zeros((batch_size, 1, SIDE, SIDE), dtype=np.float32)
        self.labels = np.zeros(batch_size, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.data) // self.batch_size

    def __iter__(self) -> Iterator[Batch]:
        order = np.arange(len(self.data))
        if self.shuffle:
            self._random.shuffle(order)
        for step in range(len(self)):
            self._fill(order[step * self.batch_size : (step + 1) * self.batch_size])
            yield torch.from_numpy(self.images), torch.from_numpy(self.labels)

    def _fill(self, index: np.ndarray) -> None:
        np.take(self.data.images, index, axis=0, out=self.images[:, 0])
        np.take(self.data.labels, index, out=self.labels)
        if self.noise:
            self.images += self._random.normal(0.0, self.noise, self.images.shape)
            np.clip(self.images, 0.0, 1.0, out=self.images)
