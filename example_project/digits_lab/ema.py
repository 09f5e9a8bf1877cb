"""Exponential moving average of the weights, swapped in for evaluation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class WeightAverage:
    """Keeps averaged copies of a model's parameters; buffers are left to the model.

    Swapping copies through `.data`, so that it also works in the middle of a training step: the values that
    a pending backward needs are back, bit for bit, by the time it runs.
    """

    def __init__(self, model: nn.Module, decay: float = 0.99) -> None:
        self.decay = decay
        self.updates = 0
        self._parameters = list(model.parameters())
        self.average = [p.detach().clone() for p in self._parameters]
        self._backup = [torch.empty_like(p, requires_grad=False) for p in self._parameters]
        self._swapped = False

    @torch.no_grad()
    def update(self) -> None:
        """Move the averages towards the weights; the first steps move faster, or they'd stay at the init."""
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for average, parameter in zip(self.average, self._parameters, strict=True):
            average.lerp_(parameter, 1.0 - decay)

    @contextmanager
    def swapped_in(self) -> Iterator[None]:
        """Run the block with the averaged weights, then put the trained ones back."""
        if self._swapped:
            raise RuntimeError("the averaged weights are already swapped in")
        self._copy(self._backup, self._parameters)
        self._copy(self._parameters, self.average)
        self._swapped = True
        try:
            yield
        finally:
            self._copy(self._parameters, self._backup)
            self._swapped = False

    @staticmethod
    def _copy(targets: list[Tensor] | list[nn.Parameter], sources: list[Tensor] | list[nn.Parameter]) -> None:
        for target, source in zip(targets, sources, strict=True):
            target.data.copy_(source.data)
