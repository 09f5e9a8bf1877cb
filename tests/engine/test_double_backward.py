"""A second backward pass over what a first one built of overwritten values, itself coming out right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_inplace.engine.guard import examine
from pytest_inplace.reports.findings import Finding

Write = Callable[[torch.Tensor], object]


def negate(h: torch.Tensor) -> None:
    torch.from_numpy(h.detach().numpy()).neg_()


def nothing(h: torch.Tensor) -> None:
    pass


def penalised(first: Write, second: Write = nothing) -> tuple[torch.Tensor, torch.Tensor]:
    """cosh(h) / h has an even derivative, which comes out the same from -h; the next one does not."""
    w = torch.tensor([0.5, 1.0, 1.5], requires_grad=True)
    h = w * 2
    y = h.cosh() / h  # saved
    first(h)  # written
    (g,) = torch.autograd.grad(y.sum(), w, create_graph=True)
    second(h)
    (g * g * w).sum().backward()
    assert w.grad is not None
    return g.detach(), w.grad


def error(first: Write, second: Write = nothing) -> float:
    right, computed = penalised(nothing)[1], penalised(first, second)[1]
    return float((right - computed).abs().max())


def findings(first: Write, second: Write = nothing) -> list[Finding]:
    return examine(lambda: penalised(first, second)).findings


def test_the_first_pass_comes_out_right_and_the_second_does_not() -> None:
    torch.testing.assert_close(penalised(nothing)[0], penalised(negate)[0])
    assert error(negate) > 0.1


def test_the_write_is_found_with_the_whole_error() -> None:
    (finding,) = findings(negate)
    assert finding.code == "INP102"
    assert finding.modified is not None
    assert finding.modified.source is not None
    assert "neg_" in finding.modified.source
    assert finding.gradients[0].max_abs == pytest.approx(error(negate), rel=1e-4)


def test_a_second_write_is_judged_from_what_was_there_before_the_first() -> None:
    def add(h: torch.Tensor) -> None:
        h.data.add_(0.25)

    expected = pytest.approx(error(negate, add), rel=1e-4)
    assert expected in [finding.gradients[0].max_abs for finding in findings(negate, add)]


@pytest.mark.parametrize("write", [nothing, lambda h: h.data.copy_(h.detach().clone())])
def test_nothing_is_found_where_nothing_changed(write: Write) -> None:
    assert findings(write) == []


Loss = Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]


def _saved_alone(h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    return (h * 1).exp().prod(dim=-1).sum() + h.pow(2).sum(), h


def _saved_in_a_list(h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    e = h.exp()
    return torch.cat([h.sin(), e * e, h * e]).cos().sum(), e


def _saved_by_two(h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    e = h.exp()
    return e.clone().pow(2).sum() + torch.nn.functional.mse_loss(e, torch.ones_like(e)), e


class Product(torch.autograd.Function):
    """Its tensors are told apart though most of them have not changed."""

    @staticmethod
    def forward(ctx: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        out = torch.sigmoid(a * b)
        ctx.save_for_backward(a, b, out)
        return out

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        a, b, out = ctx.saved_tensors
        inner = grad * out * (1 - out)
        return inner * b, inner * a


def _saved_by_a_function(h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    out = Product.apply(h.sin(), h * 2)
    return out.sum(), out


def _saved_as_a_view(h: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The derivative of a determinant solves with the transpose, which may have the same layout."""
    a = h[:1, :1] + 1
    return torch.logdet(a) ** 2 + h.sum(), a


@pytest.mark.parametrize(
    "loss", [_saved_alone, _saved_in_a_list, _saved_by_two, _saved_by_a_function, _saved_as_a_view]
)
@pytest.mark.parametrize("rows", [0, 3])
def test_the_error_names_the_operation_as_pytorch_does(loss: Loss, rows: int) -> None:
    """Tensors without elements have no memory to tell one from another by."""
    if loss is _saved_as_a_view:
        rows = 1

    def program() -> None:
        w = torch.ones(4, 4, requires_grad=True)
        y, written = loss(torch.ones(rows, 4) @ w)
        (g,) = torch.autograd.grad(y, w, create_graph=True)
        written.detach().add_(0)
        (g * g).sum().backward()

    with pytest.raises(RuntimeError, match="modified by an inplace operation") as plain:
        program()
    assert str(examine(program).error) == str(plain.value)


@pytest.mark.parametrize("rows", [0, 2])
def test_what_was_written_in_the_graph_is_named_by_its_last_operation(rows: int) -> None:
    def program() -> None:
        w, v = torch.ones(3, 4, requires_grad=True), torch.ones(4, 4, requires_grad=True)
        h = torch.lerp(torch.ones(rows, 3) @ w, torch.ones(rows, 4), 0.3)
        y = torch.nn.functional.linear(h, v).square().mean()
        grads = torch.autograd.grad(y, (v, w), create_graph=True)
        h *= 1.25
        torch.stack([(g * g).sum() for g in grads]).sum().backward()

    with pytest.raises(RuntimeError, match="output 0 of Mul") as plain:
        program()
    assert str(examine(program).error) == str(plain.value)


@pytest.mark.parametrize("leaf", [False, True])
def test_a_lazy_conjugate_that_a_differentiated_node_saves_is_kept(leaf: bool) -> None:
    """It is of the same memory as what the node has unpacked, but not the same values."""

    def program() -> list[torch.Tensor | None]:
        w = torch.tensor([1 + 2j, 2 - 1j, 3 + 1j], requires_grad=True)
        v = torch.tensor([1 + 1j, 2 - 2j, 3 + 3j], requires_grad=True)
        h = w if leaf else w * 2
        (g,) = torch.autograd.grad((h * v * h).abs().square().sum(), w, create_graph=True)
        (g.abs() ** 3).sum().backward()
        return [w.grad, v.grad]

    plain, examination = program(), examine(program)
    assert examination.error is None
    assert examination.findings == []
    for right, computed in zip(plain, examination.result, strict=True):
        assert torch.equal(right, computed)
