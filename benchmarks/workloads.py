"""The programs that are timed. Each maker sets one up and returns a function that runs it once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

Step = Callable[[], object]


@dataclass(frozen=True)
class Workload:
    """A program, what it stands for, and the ratio to plain that it should not exceed."""

    name: str
    what: str
    make: Callable[[], Step]
    target: float | None = None
    heavy: bool = False
    saves: int | None = None


def _training_step(model: nn.Module, *inputs: torch.Tensor) -> Step:
    def step() -> None:
        result = model(*inputs)
        (result[0] if isinstance(result, tuple) else result).square().mean().backward()
        model.zero_grad()

    return step


def mlp_tiny() -> Step:
    layers = [module for _ in range(40) for module in (nn.Linear(16, 16), nn.Tanh())]
    return _training_step(nn.Sequential(*layers), torch.randn(4, 16))


def mlp_middling() -> Step:
    layers = [module for _ in range(8) for module in (nn.Linear(256, 256), nn.ReLU())]
    return _training_step(nn.Sequential(*layers), torch.randn(128, 256))


def cnn() -> Step:
    def block(inward: int, outward: int) -> list[nn.Module]:
        return [nn.Conv2d(inward, outward, 3, padding=1), nn.BatchNorm2d(outward), nn.ReLU(inplace=True)]

    layers = [*block(3, 16), *block(16, 32), nn.MaxPool2d(2), *block(32, 32), nn.AdaptiveAvgPool2d(1)]
    return _training_step(nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 10)), torch.randn(16, 3, 32, 32))


def _transformer(width: int, length: int, batch: int) -> Step:
    layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True)
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return _training_step(model, torch.randn(batch, length, width))


def transformer_small() -> Step:
    return _transformer(32, 16, 4)


def transformer_middling() -> Step:
    return _transformer(256, 64, 8)


def lstm_cells() -> Step:
    cell, inputs = nn.LSTMCell(16, 32), torch.randn(50, 4, 16)

    def step() -> None:
        h = c = torch.zeros(4, 32)
        for x in inputs:
            h, c = cell(x, (h, c))
        h.sum().backward()
        cell.zero_grad()

    return step


def _reused_weight(width: int, times: int, batch: int) -> Step:
    """A linear recurrence: one weight, saved at each step. The gradient of the weight is asked for, too."""
    weight = (torch.randn(width, width) / width**0.5).requires_grad_()
    start = torch.randn(batch, width)

    def step() -> None:
        h = start
        for _ in range(times):
            h = h @ weight
        h.sum().backward()
        weight.grad = None

    return step


def weight_64mb() -> Step:
    return _reused_weight(4096, 100, 8)


def weight_16mb() -> Step:
    return _reused_weight(2048, 50, 8)


def _chain(length: int) -> Step:
    start = torch.tensor(0.5, requires_grad=True)

    def step() -> None:
        h = start
        for _ in range(length):
            h = h.sin()
        torch.autograd.grad(h, start)

    return step


def saves_1k() -> Step:
    return _chain(1_000)


def saves_100k() -> Step:
    return _chain(100_000)


def scalar_chain() -> Step:
    a, b = (torch.tensor(value, requires_grad=True) for value in (0.999, 0.001))

    def step() -> None:
        h = a
        for _ in range(10_000):
            h = h * a + b
        torch.autograd.grad(h, (a, b))

    return step


def jacobian() -> Step:
    layers = [module for _ in range(4) for module in (nn.Linear(32, 32), nn.Tanh())]
    model = nn.Sequential(*layers, nn.Linear(32, 1000))
    x = torch.randn(32, requires_grad=True)

    def step() -> None:
        outputs = model(x)
        for row in torch.eye(1000):
            torch.autograd.grad(outputs, x, row, retain_graph=True)

    return step


def gan_step() -> Step:
    generator = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 128))
    critic = nn.Sequential(nn.Linear(128, 64), nn.LeakyReLU(0.2, inplace=True), nn.Linear(64, 1))
    optimizers = [torch.optim.Adam(model.parameters(), 1e-5) for model in (generator, critic)]
    noise, real = torch.randn(32, 16), torch.randn(32, 128)
    loss = nn.functional.binary_cross_entropy_with_logits

    def step() -> None:
        fake = generator(noise)
        ones, zeros = torch.ones(32, 1), torch.zeros(32, 1)
        optimizers[1].zero_grad()
        (loss(critic(real), ones) + loss(critic(fake.detach()), zeros)).backward()
        optimizers[1].step()
        optimizers[0].zero_grad()
        loss(critic(fake), ones).backward()
        optimizers[0].step()

    return step


WORKLOADS = [
    Workload("mlp-tiny", "40 layers of 16 with tanh, batch 4", mlp_tiny, 1.6),
    Workload("mlp-middling", "8 layers of 256 with ReLU, batch 128", mlp_middling, 1.15),
    Workload("cnn", "3 convolutions with BatchNorm and in-place ReLU, batch 16", cnn, 1.05),
    Workload("transformer-small", "2 layers of 32, 4 sequences of 16", transformer_small, 1.3),
    Workload("transformer-middling", "2 layers of 256, 8 sequences of 64", transformer_middling, 1.05),
    Workload("lstm-cells", "an LSTM cell of 32 over 50 steps, batch 4", lstm_cells, 1.6),
    Workload("weight-16mb", "one 2048 x 2048 weight used 50 times, batch 8", weight_16mb, 1.2),
    Workload("weight-64mb", "one 4096 x 4096 weight used 100 times, batch 8", weight_64mb, None, True),
    Workload("scalar-chain", "20,000 chained scalar operations", scalar_chain, 1.6),
    Workload("saves-1k", "one graph with 1,000 saves", saves_1k, None, False, 1_000),
    Workload("saves-100k", "one graph with 100,000 saves", saves_100k, None, True, 100_000),
    Workload("jacobian", "1,000 backward passes over a retained graph", jacobian),
    Workload("gan-step", "a generator, a critic and their two Adam steps, batch 32", gan_step),
]
