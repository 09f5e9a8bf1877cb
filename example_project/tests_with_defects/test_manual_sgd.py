"""Defect: a hand-written optimizer step updates the weights in place outside `torch.no_grad()`."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from digits_lab.data import load_split


class SoftmaxRegression:
    """Multinomial logistic regression with its own gradient descent."""

    def __init__(self, inputs: int, classes: int) -> None:
        self.w = torch.zeros(inputs, classes, requires_grad=True)
        self.b = torch.zeros(classes, requires_grad=True)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(x @ self.w + self.b, y)

    def fit(self, x: Tensor, y: Tensor, steps: int, lr: float) -> list[float]:
        history = []
        for _ in range(steps):
            loss = self.loss(x, y)
            loss.backward()
            w, b = self.w, self.b
            w -= lr * w.grad  # WRITTEN
            b -= lr * b.grad
            w.grad.zero_()
            b.grad.zero_()
            history.append(loss.item())
        return history


def test_regression_learns() -> None:
    images, labels = load_split()[0].take(64).tensors()
    model = SoftmaxRegression(64, 10)
    history = model.fit(images.flatten(1), labels, steps=10, lr=0.5)
    assert history[-1] < history[0]
