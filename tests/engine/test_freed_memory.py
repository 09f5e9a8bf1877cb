"""Memory that is given back while its tensor is kept and filled again before it is used was not overwritten.

Reversible networks do this with activations, sharded training with parameters. Reading it would crash.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_inplace.engine import values
from pytest_inplace.engine.guard import examine
from pytest_inplace.reports.findings import Finding

RIGHT = torch.full((4, 4), 2.0)


def free(x: torch.Tensor) -> None:
    x.untyped_storage().resize_(0)


def refill(x: torch.Tensor, content: torch.Tensor) -> None:
    x.untyped_storage().resize_(x.nbytes)
    x.data.copy_(content)


class Reversible(torch.autograd.Function):
    """Doubles; keeps its input on ctx, frees it, and works it out again from the output in backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.x, ctx.y = x, x.detach() * 2
        free(x)
        return ctx.y.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        refill(ctx.x, ctx.y / 2)
        return grad * 2


class SavedReversible(torch.autograd.Function):
    """The same, with its input saved for backward."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        ctx.y = x.detach() * 2
        free(x)
        return ctx.y.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        refill(ctx.saved_tensors[0], ctx.y / 2)
        return grad * 2


class FreesGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        result = grad * 2
        free(grad)
        return result


def through(function: Any) -> Callable[[], None]:
    def program() -> None:
        w = torch.randn(4, 4, requires_grad=True)
        h = w * 1
        (function.apply(h) * torch.ones(4, 4)).sum().backward()
        assert torch.equal(w.grad, RIGHT)  # type: ignore[arg-type]

    return program


def freed_and_dropped() -> None:
    h = torch.randn(4, 4, requires_grad=True) * 1
    out = h * h
    free(h)
    del out


def refilled(factor: float) -> Callable[[], None]:
    def program() -> None:
        h = torch.randn(4, 4, requires_grad=True) * 1
        content = h.detach().clone()
        out = h * h
        free(h)
        refill(h, content * factor)
        out.sum().backward()

    return program


def findings(program: Callable[[], None]) -> list[Finding]:
    found = examine(program)
    assert found.error is None
    return found.findings


@pytest.mark.parametrize(
    "program",
    [through(Reversible), through(SavedReversible), through(FreesGradient), freed_and_dropped, refilled(1)],
    ids=["on ctx", "saved", "gradient", "dropped", "refilled"],
)
def test_no_finding(program: Callable[[], None]) -> None:
    assert findings(program) == []


def test_refilled_with_other_values() -> None:
    (finding,) = findings(refilled(3))
    assert finding.code == "INP102"
    assert finding.modified is not None
    assert finding.modified.function == "refill"


def test_nothing_reads_it() -> None:
    x = torch.randn(4, 4)
    kept = values.snapshot(x)
    free(x)
    assert values.freed(x)
    assert not values.freed(kept)
    assert values.digest(x) is None
    assert not values.rewritten(x, values.digest(kept))
    assert values.freed(values.snapshot(x))
    assert not values.same_values(kept, x)
    assert values.same_values(x, x)
    assert values.difference(kept, x).max_abs is None
    error = values.gradient_error("x", kept, x)
    assert error is not None
    assert error.max_abs is None
