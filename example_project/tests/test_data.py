"""Splits, batches and the staging buffers."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from digits_lab.data import Digits, StagingLoader, iterate_batches


def test_batches_cover_every_example_once(held_out: Digits) -> None:
    labels = torch.cat([y for _, y in iterate_batches(held_out, 7, seed=3)])
    assert sorted(labels.tolist()) == sorted(held_out.labels.tolist())


def test_staging_buffers_are_refilled_after_backward(train: Digits) -> None:
    """Training through the shared buffers gives the gradients that separate copies give."""
    model = nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
    loader = StagingLoader(train.take(48), batch_size=16, noise=0.05)
    copies = []
    for images, labels in loader:
        copies.append((images.clone(), labels.clone()))
        F.cross_entropy(model(images), labels).backward()
    staged = model[1].weight.grad.clone()

    model.zero_grad()
    torch.stack([F.cross_entropy(model(x), y) for x, y in copies]).sum().backward()
    torch.testing.assert_close(staged, model[1].weight.grad)


def test_staging_loader_yields_views(train: Digits) -> None:
    loader = StagingLoader(train.take(32), batch_size=16)
    images, _ = next(iter(loader))
    assert np.shares_memory(images.numpy(), loader.images)
    assert len(loader) == 2
