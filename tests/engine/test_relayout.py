"""The same values in another layout of memory: a digest tells them apart, a verdict must not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from pytest_inplace.engine.guard import examine, guard
from pytest_inplace.reports.findings import Finding


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.x = x
        return x * x

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return 2 * ctx.x * g


def relay(h: torch.Tensor, plus: float) -> None:
    h.data = h.detach().contiguous().clone() + plus


def transposed() -> torch.Tensor:
    return (torch.ones(2, 3, requires_grad=True) * 2).t()


def saved(plus: float) -> None:
    h = transposed()
    y = h * h
    relay(h, plus)
    y.sum().backward()


def saved_and_unused(plus: float) -> None:
    h = transposed()
    y = h.exp() * h
    relay(h, plus)
    assert y.requires_grad


def on_ctx(plus: float) -> None:
    h = transposed()
    y = Square.apply(h)
    relay(h, plus)
    y.sum().backward()


def in_a_checkpoint(plus: float, reentrant: bool = False) -> None:
    h, captured = transposed(), torch.full((3, 2), 0.5).t().contiguous().t()
    y = checkpoint(lambda a: (a * captured).exp(), h, use_reentrant=reentrant)
    relay(h, plus)
    relay(captured, plus)
    y.sum().backward()


def in_a_reentrant_checkpoint(plus: float) -> None:
    in_a_checkpoint(plus, True)


def by_a_hook(plus: float) -> None:
    with torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x):
        h = transposed()
        y = h * h
    relay(h, plus)
    y.sum().backward()


def in_one_run(program: Callable[[], None]) -> list[Finding]:
    with guard(raises=False) as report:
        program()
    return report.findings


def in_two_runs(program: Callable[[], None]) -> list[Finding]:
    return examine(program).findings


PROGRAMS = [saved, saved_and_unused, on_ctx, in_a_checkpoint, in_a_reentrant_checkpoint, by_a_hook]
pytestmark = [
    pytest.mark.parametrize("program", PROGRAMS),
    pytest.mark.parametrize("found", [in_one_run, in_two_runs]),
]
Found = Callable[[Callable[[], None]], list[Finding]]


def test_the_same_values_in_another_layout_are_no_finding(
    found: Found, program: Callable[[float], None]
) -> None:
    assert [finding.code for finding in found(lambda: program(0.0))] == []


def test_other_values_in_another_layout_are_one(found: Found, program: Callable[[float], None]) -> None:
    assert found(lambda: program(1.0))
