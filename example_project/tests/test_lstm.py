"""The row-by-row LSTM and truncated backpropagation through time."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from digits_lab.data import Batch, Digits, iterate_batches
from digits_lab.models import RowLSTM
from digits_lab.models.lstm import chunks, detach_state, reset_streams, truncated_bptt


@pytest.fixture
def model() -> RowLSTM:
    return RowLSTM(hidden=24)


def test_chunks_with_carried_state_match_one_pass(model: RowLSTM, batch: Batch) -> None:
    state = model.initial_state(16)
    with torch.no_grad():
        full, _ = model(batch[0].squeeze(1), state)
        parts = []
        for chunk, _ in chunks(batch[0], 2):
            logits, state = model(chunk, state)
            parts.append(logits)
    torch.testing.assert_close(torch.cat(parts, dim=1), full)


def test_reset_clears_only_finished_streams(model: RowLSTM, batch: Batch) -> None:
    logits, state = model(batch[0].squeeze(1), model.initial_state(16))
    logits.sum().backward()
    finished = torch.arange(16) < 5
    hidden, memory = reset_streams(detach_state(state), finished)
    assert hidden[:5].abs().sum() == 0 and memory[:5].abs().sum() == 0
    assert (hidden[5:].abs().sum(dim=1) > 0).all()


def test_truncated_training_lowers_the_loss(model: RowLSTM, train: Digits) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2, foreach=True)
    state = model.initial_state(32)
    losses = []
    for epoch in range(2):
        for images, labels in iterate_batches(train.take(1280), 32, seed=epoch):
            loss, state = truncated_bptt(model, optimizer, images, labels, state)
            losses.append(loss)
    assert sum(losses[-5:]) < 0.6 * sum(losses[:5])


def test_gradients_accumulate_over_chunks_before_the_step(model: RowLSTM, batch: Batch) -> None:
    """Without a step in between, chunk by chunk backward adds up to the gradients of the detached sum."""
    images, labels = batch
    state = model.initial_state(16)
    total = torch.zeros(())
    for chunk, _ in chunks(images, 4):
        logits, state = model(chunk, detach_state(state))
        total = total + F.cross_entropy(logits[:, -1], labels)
    expected = torch.autograd.grad(total, list(model.parameters()))

    state = model.initial_state(16)
    for chunk, _ in chunks(images, 4):
        logits, state = model(chunk, detach_state(state))
        F.cross_entropy(logits[:, -1], labels).backward()
    for parameter, gradient in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient)
