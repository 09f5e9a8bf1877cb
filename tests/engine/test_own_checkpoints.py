"""Checkpoints as users write them: backward runs a module again, and a backward pass of its own."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from pytest_inplace.engine.guard import examine


class Rerun(torch.autograd.Function):
    """Uses up in backward what forward has left on ctx, in each of the ways that are common."""

    @staticmethod
    def forward(
        ctx: Any, phony: torch.Tensor, module: nn.Module, states: Any, x: torch.Tensor
    ) -> torch.Tensor:
        ctx.module, ctx.states, ctx.spent = module, states, {"state": [1]}
        ctx.x = x
        states.append(torch.get_rng_state())
        with torch.no_grad():
            return module(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        torch.set_rng_state(ctx.states.pop())
        ctx.spent["state"].pop()
        x = ctx.x.detach().requires_grad_()
        del ctx.x
        with torch.enable_grad():
            ctx.module.again = True
            y = ctx.module(x)
            ctx.module.again = False
        y.backward(grad)
        return None, None, None, x.grad


class Counting(nn.Module):
    """Sums its inputs up, but not when it is run again; ``reads`` says whether the sum matters."""

    def __init__(self, reads: bool) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([1.0, 2.0, 3.0]))
        self.register_buffer("sum", torch.zeros(3))
        self.again, self.reads = False, reads

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x * self.weight
        if self.reads:
            y = y * (1 + self.sum)
        if not self.again:
            with torch.no_grad():
                self.sum += x.sum()
        return y.sin()


def train(module: Counting, between: Callable[[Counting], object]) -> Counting:
    states: collections.deque[Any] = collections.deque()
    phony = torch.ones(1, requires_grad=True)
    x = torch.tensor([0.1, 0.2, 0.3], requires_grad=True)
    y = Rerun.apply(phony, module, states, x)
    between(module)
    y.sum().backward()
    return module


def expected(between: Callable[[Counting], object]) -> torch.Tensor | None:
    return train(Counting(False), between).weight.grad


def nothing(module: Counting) -> None:
    pass


def add(module: Counting) -> None:
    module.sum.add_(1)


def test_a_buffer_that_the_second_run_does_not_read_is_no_finding() -> None:
    grads = []

    def program() -> None:
        module = train(Counting(False), add)
        grads.append(module.weight.grad)

    assert examine(program).findings == []
    assert len(grads) == 2
    # The second run of the program, with its trials, does what the first did.
    assert all(torch.equal(grad, grads[0]) for grad in grads)
    assert torch.equal(grads[0], expected(nothing))


def test_a_buffer_that_it_reads_is_judged_by_the_gradients_of_the_leaves_it_hides() -> None:
    (finding,) = examine(lambda: train(Counting(True), add)).findings
    assert (finding.code, finding.state) == ("INP201", "confirmed")
    assert finding.tensor.name == "ctx.module.sum"
    assert finding.gradients_judged
    assert {error.name for error in finding.gradients} >= {"module.weight"}
    assert finding.modified is not None
    assert finding.modified.source.strip() == "module.sum.add_(1)"


def test_a_parameter_that_was_stepped_is_judged_too() -> None:
    def step(module: Counting) -> None:
        with torch.no_grad():
            module.weight.mul_(2)

    (finding,) = examine(lambda: train(Counting(False), step)).findings
    assert finding.code == "INP201"
    assert finding.gradients_judged
    right = expected(nothing)
    wrong = expected(step)
    assert right is not None
    assert wrong is not None
    (error,) = [e for e in finding.gradients if e.name == "module.weight"]
    assert error.max_abs == pytest.approx(float((right - wrong).abs().max()), rel=1e-5)


def test_the_gradients_after_a_trial_are_those_of_plain_pytorch() -> None:
    """What a trial accumulates in hidden leaves is taken out again, also beside an earlier gradient."""
    grads = []

    def program() -> None:
        module = Counting(True)
        module.weight.grad = torch.full((3,), 10.0)
        train(module, add)
        grads.append(module.weight.grad)

    examine(program)
    assert len(grads) == 2
    assert torch.equal(grads[0], grads[1])
