"""The supervised training loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from digits_lab.data import Batch
from digits_lab.ema import WeightAverage
from digits_lab.losses import accuracy, smoothed_cross_entropy

LossFunction = Callable[[nn.Module, Tensor, Tensor], Tensor]


@dataclass(frozen=True)
class TrainConfig:
    """Everything that a run may vary."""

    lr: float = 3e-3
    optimizer: str = "adamw"
    optimizer_options: dict[str, bool] = field(default_factory=dict)
    warmup_steps: int = 2
    total_steps: int = 100
    accumulate: int = 1
    clip_norm: float | None = 1.0
    amp: bool = False
    loss_scale: float | None = None
    ema_decay: float | None = None
    activation_checkpointing: bool = False


def classification_loss(model: nn.Module, images: Tensor, labels: Tensor) -> Tensor:
    """Smoothed cross entropy of the model's logits."""
    return smoothed_cross_entropy(model(images), labels)


def build_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """The optimizer the config names; options such as foreach and fused are passed on."""
    if config.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=config.lr, **config.optimizer_options)
    if config.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=config.lr, momentum=0.9, **config.optimizer_options)
    raise ValueError(f"unknown optimizer {config.optimizer!r}")


def warmup_cosine(step: int, warmup: int, total: int) -> float:
    """Factor on the learning rate: linear up, then half a cosine down."""
    if step < warmup:
        return (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total - warmup))
    return 0.5 * (1.0 + math.cos(math.pi * progress))


class Trainer:
    """Runs epochs of optimizer steps, each over `accumulate` micro-batches."""

    def __init__(
        self, model: nn.Module, config: TrainConfig, loss: LossFunction = classification_loss
    ) -> None:
        self.model = model
        self.config = config
        self.loss = loss
        self.optimizer = build_optimizer(model, config)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(
            self.optimizer, lambda step: warmup_cosine(step, config.warmup_steps, config.total_steps)
        )
        self.scaler = torch.amp.GradScaler(
            "cpu", init_scale=config.loss_scale or 1.0, enabled=config.loss_scale is not None
        )
        self.ema = WeightAverage(model, config.ema_decay) if config.ema_decay is not None else None
        if config.activation_checkpointing:
            if not hasattr(model, "checkpoint_blocks"):
                raise ValueError(f"{type(model).__name__} has no activation checkpointing")
            model.checkpoint_blocks = True

    def micro_step(self, inputs: Tensor, targets: Tensor) -> float:
        """Forward and backward of one micro-batch; its gradients are added to those already there."""
        with torch.autocast("cpu", torch.bfloat16) if self.config.amp else nullcontext():
            loss = self.loss(self.model, inputs, targets)
        self.scaler.scale(loss / self.config.accumulate).backward()
        return loss.item()

    def apply_gradients(self) -> None:
        """Clip, step, average, and zero the gradients in place for the next micro-batches."""
        if self.config.clip_norm is not None:
            self.scaler.unscale_(self.optimizer)
            nn.utils.clip_grad_norm_(self.model.parameters(), self.config.clip_norm)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        self.optimizer.zero_grad(set_to_none=False)
        if self.ema is not None:
            self.ema.update()

    def train_epoch(self, batches: Iterable[Batch]) -> list[float]:
        """The loss of every micro-batch; a last incomplete accumulation is applied as it is."""
        self.model.train()
        losses: list[float] = []
        pending = 0
        for inputs, targets in batches:
            losses.append(self.micro_step(inputs, targets))
            pending += 1
            if pending == self.config.accumulate:
                self.apply_gradients()
                pending = 0
        if pending:
            self.apply_gradients()
        return losses

    @torch.no_grad()
    def evaluate(self, batches: Iterable[Batch]) -> float:
        """Mean accuracy, with the averaged weights if there are any."""
        training = self.model.training
        self.model.eval()
        try:
            with self.ema.swapped_in() if self.ema is not None else nullcontext():
                scores = [(accuracy(self.model(x), y), len(y)) for x, y in batches]
        finally:
            self.model.train(training)
        return sum(score * size for score, size in scores) / sum(size for _, size in scores)
