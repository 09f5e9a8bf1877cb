"""The training loop and its options."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from digits_lab.data import Batch, Digits, StagingLoader, iterate_batches, quantise
from digits_lab.losses import next_token_loss
from digits_lab.models import DigitCNN, PixelTransformer
from digits_lab.trainer import TrainConfig, Trainer, warmup_cosine

OPTIMIZERS = [
    ("adamw", {"fused": True}),
    ("adamw", {"foreach": True}),
    ("sgd", {"foreach": False}),
]


def small_net() -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(inplace=True), nn.Linear(32, 10))


@pytest.fixture(params=OPTIMIZERS, ids=lambda param: f"{param[0]}-{'-'.join(param[1])}")
def config(request: pytest.FixtureRequest) -> TrainConfig:
    name, options = request.param
    return TrainConfig(lr=1e-2, optimizer=name, optimizer_options=options, total_steps=20)


def test_an_epoch_lowers_the_loss(config: TrainConfig, train: Digits) -> None:
    losses = Trainer(small_net(), config).train_epoch(StagingLoader(train.take(640), 32, noise=0.02))
    assert len(losses) == 20
    assert sum(losses[-4:]) < sum(losses[:4])


@pytest.mark.parametrize("loss_scale", [None, 1024.0])
def test_mixed_precision_stays_close_to_full_precision(train: Digits, loss_scale: float | None) -> None:
    model = small_net()
    other = copy.deepcopy(model)
    curves = []
    for network, amp in ((model, False), (other, True)):
        options = TrainConfig(amp=amp, loss_scale=loss_scale if amp else None)
        curves.append(Trainer(network, options).train_epoch(iterate_batches(train.take(256), 32, seed=0)))
    torch.testing.assert_close(torch.tensor(curves[0]), torch.tensor(curves[1]), rtol=0.03, atol=0.03)


def test_accumulation_matches_the_large_batch(train: Digits) -> None:
    model = small_net()
    other = copy.deepcopy(model)
    options = {"optimizer": "sgd", "clip_norm": None}
    Trainer(model, TrainConfig(**options)).train_epoch(iterate_batches(train.take(64), 64))
    Trainer(other, TrainConfig(accumulate=4, **options)).train_epoch(
        StagingLoader(train.take(64), 16, seed=None)
    )
    for large, small in zip(model.parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(large, small)


def test_gradients_are_clipped(batch: Batch) -> None:
    trainer = Trainer(small_net(), TrainConfig(clip_norm=1e-3))
    trainer.micro_step(*batch)
    nn.utils.clip_grad_norm_(trainer.model.parameters(), 1e-3)
    norm = torch.stack([p.grad.norm() for p in trainer.model.parameters()]).norm()
    torch.testing.assert_close(norm, torch.tensor(1e-3), rtol=1e-2, atol=0)
    trainer.apply_gradients()
    assert all(p.grad.abs().sum() == 0 for p in trainer.model.parameters())


def test_evaluation_uses_the_average_and_puts_the_weights_back(train: Digits, held_out: Digits) -> None:
    trainer = Trainer(DigitCNN(), TrainConfig(ema_decay=0.9, lr=1e-2))
    trainer.train_epoch(iterate_batches(train.take(480), 32, seed=0))
    before = copy.deepcopy(trainer.model.state_dict())
    assert trainer.evaluate(iterate_batches(held_out, 50)) > 0.6
    assert trainer.model.training
    assert all(torch.equal(before[name], value) for name, value in trainer.model.state_dict().items())


def test_checkpointed_mixed_precision_transformer(train: Digits) -> None:
    def loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
        tokens = quantise(images)[:, 16:40]
        return next_token_loss(model(model.shifted(tokens)), tokens)

    model = PixelTransformer(width=16, heads=2, layers=1, max_length=24)
    options = TrainConfig(lr=1e-2, amp=True, activation_checkpointing=True, accumulate=2, ema_decay=0.9)
    losses = Trainer(model, options, loss).train_epoch(iterate_batches(train.take(256), 16, seed=0))
    assert losses[-1] < losses[0]


def test_schedule_warms_up_and_decays() -> None:
    factors = [warmup_cosine(step, warmup=4, total=20) for step in (0, 3, 4, 12, 20)]
    assert factors == pytest.approx([0.25, 1.0, 1.0, 0.5, 0.0])
