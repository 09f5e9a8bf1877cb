"""Defect: a product of two matrices is refilled although the exponent's backward still needs it."""

from __future__ import annotations

import torch
from torch import Tensor


def scores(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """A quadratic score of a matrix product, and the product's storage for the caller to reuse."""
    d = a @ b
    e = d * d  # SAVED
    return e.mean(), d


def fit(a: Tensor, b: Tensor, steps: int, lr: float) -> list[float]:
    """Gradient descent on both factors."""
    history = []
    for _ in range(steps):
        loss, workspace = scores(a, b)
        workspace[:] = 1  # WRITTEN
        loss.backward()
        with torch.no_grad():
            for factor in (a, b):
                factor -= lr * factor.grad
                factor.grad.zero_()
        history.append(loss.item())
    return history


def test_factors_shrink() -> None:
    torch.manual_seed(0)
    a = torch.randn(6, 4, requires_grad=True)
    b = torch.randn(4, 6, requires_grad=True)
    history = fit(a, b, steps=5, lr=0.1)
    assert history[-1] < history[0]
