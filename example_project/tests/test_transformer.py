"""The pixel transformer: causality, the cache, checkpointing."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from digits_lab.data import Batch, quantise
from digits_lab.losses import next_token_loss
from digits_lab.models import PixelTransformer


@pytest.fixture(scope="class")
def model() -> PixelTransformer:
    """One small model for a whole class of tests, which only read its weights."""
    torch.manual_seed(2)
    return PixelTransformer(width=16, heads=2, layers=2, max_length=24)


class TestAttention:
    """What a position sees, with and without the cache."""

    @pytest.fixture
    def tokens(self, batch: Batch) -> Tensor:
        return quantise(batch[0])[:4, 20:44]

    def test_no_position_sees_the_future(self, model: PixelTransformer, tokens: Tensor) -> None:
        embedded: list[Tensor] = []
        handle = model.tokens.register_forward_hook(lambda _m, _i, out: embedded.append(out))
        try:
            logits = model(model.shifted(tokens))
        finally:
            handle.remove()
        (gradient,) = torch.autograd.grad(logits[:, 10].sum(), embedded[0])
        assert gradient[:, :11].abs().sum() > 0
        assert gradient[:, 11:].abs().sum() == 0

    @pytest.mark.parametrize("prefix", [1, 9])
    def test_cache_gives_the_logits_of_the_full_pass(
        self, model: PixelTransformer, tokens: Tensor, prefix: int
    ) -> None:
        inputs = model.shifted(tokens)
        with torch.no_grad():
            full = model(inputs)
            cache = model.new_cache(len(tokens))
            parts = [model(inputs[:, :prefix], cache), model(inputs[:, prefix:], cache)]
        torch.testing.assert_close(torch.cat(parts, dim=1), full)

    def test_generation_between_forward_and_backward(self, model: PixelTransformer, tokens: Tensor) -> None:
        """Sampling for a progress report in mid-step writes to its own cache only."""
        weights = list(model.parameters())
        expected = torch.autograd.grad(next_token_loss(model(model.shifted(tokens)), tokens), weights)
        loss = next_token_loss(model(model.shifted(tokens)), tokens)
        samples = model.generate(3, 24)
        gradients = torch.autograd.grad(loss, weights)
        assert samples.shape == (3, 24) and samples.max() <= 16
        assert all(torch.equal(a, b) for a, b in zip(gradients, expected, strict=True))


def test_checkpointing_keeps_the_gradients(batch: Batch) -> None:
    tokens = quantise(batch[0])[:4, 16:40]
    model = PixelTransformer(width=16, heads=2, max_length=24)
    gradients = []
    for flag in (False, True):
        model.checkpoint_blocks = flag
        model.zero_grad(set_to_none=True)
        next_token_loss(model(model.shifted(tokens)), tokens).backward()
        gradients.append([p.grad for p in model.parameters()])
    for plain, recomputed in zip(*gradients, strict=True):
        torch.testing.assert_close(plain, recomputed)


def test_a_few_steps_lower_the_loss(batch: Batch) -> None:
    tokens = quantise(batch[0])[:, 16:40]
    model = PixelTransformer(width=16, heads=2, layers=1, max_length=24)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, fused=True)
    losses = []
    for _ in range(12):
        loss = next_token_loss(model(model.shifted(tokens)), tokens)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0, foreach=True)
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0]
