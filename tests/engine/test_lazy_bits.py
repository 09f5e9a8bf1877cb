"""Lazily conjugated and negated tensors: the same bytes with another meaning, noted on the tensor."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_inplace.engine.guard import examine

Exchange = Callable[[torch.Tensor], torch.Tensor]


def leaf() -> torch.Tensor:
    return torch.tensor([1 + 2j, 2 - 1j, 3 + 1j], requires_grad=True)


def backward(exchange: Exchange, conjugated: bool) -> torch.Tensor:
    w = leaf()
    h = (w * 2).conj() if conjugated else w * 2
    y = h * h
    h.data = exchange(h.detach())
    y.abs().sum().backward()
    assert w.grad is not None
    return w.grad


def conjugate(h: torch.Tensor) -> torch.Tensor:
    return h.conj()


def negate(h: torch.Tensor) -> torch.Tensor:
    return torch._neg_view(h)


@pytest.mark.parametrize("conjugated", [False, True])
@pytest.mark.parametrize("exchange", [conjugate, negate])
def test_another_meaning_is_a_write(exchange: Exchange, conjugated: bool) -> None:
    right, computed = backward(lambda h: h, conjugated), backward(exchange, conjugated)
    assert not torch.equal(right, computed)
    examination = examine(lambda: backward(exchange, conjugated))
    assert torch.equal(examination.result, computed)
    (finding,) = examination.findings
    assert finding.code == "INP102"
    assert finding.modified is not None
    assert finding.modified.function == "backward"
    assert finding.values is not None
    assert finding.values.changed == 3
    assert finding.gradients[0].max_abs == pytest.approx(float((right - computed).abs().max()))


@pytest.mark.parametrize("conjugated", [False, True])
@pytest.mark.parametrize(
    "exchange",
    [
        lambda h: h,
        lambda h: h.conj().conj(),
        lambda h: h.conj().resolve_conj().conj(),
        lambda h: h.resolve_conj(),
        lambda h: h.clone(),
    ],
)
def test_the_same_numbers_are_none(exchange: Exchange, conjugated: bool) -> None:
    assert torch.equal(backward(lambda h: h, conjugated), backward(exchange, conjugated))
    assert examine(lambda: backward(exchange, conjugated)).findings == []


def test_a_tensor_and_its_conjugate_are_saved_side_by_side() -> None:
    def program(write: bool) -> None:
        w = leaf()
        h = w * 2
        y = h * h.conj() + h.conj() * h.conj()
        kept = h.detach().clone()
        h.data.mul_(2)
        if not write:
            h.data.copy_(kept)
        y.abs().sum().backward()

    assert examine(lambda: program(write=False)).findings == []
    (finding,) = examine(lambda: program(write=True)).findings
    assert finding.modified is not None
    assert finding.modified.source is not None
    assert "h.data.mul_(2)" in finding.modified.source


def test_a_conjugate_in_place_of_what_a_ctx_keeps() -> None:
    class Square(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.x = x
            return x * x

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
            return grad * 2 * ctx.x.conj()

    def program() -> None:
        h = leaf() * 2
        y = Square.apply(h)
        h.data = h.detach().conj()
        y.abs().sum().backward()

    assert [f.code for f in examine(program).findings] == ["INP201"]
