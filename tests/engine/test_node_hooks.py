"""Hooks on nodes of the graph, of PyTorch's own operations too, that overwrite a gradient in place."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_inplace.engine.guard import examine

Hook = Callable[..., Any]
WEIGHTS = torch.tensor([1.0, -1.0, 2.0])


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad * 2


def before(grad_outputs: tuple[torch.Tensor, ...]) -> None:
    grad_outputs[0].clamp_(max=0.5)


def after(grad_inputs: tuple[torch.Tensor, ...], grad_outputs: tuple[torch.Tensor, ...]) -> None:
    grad_outputs[0].mul_(3)


def passed_on(grad_inputs: tuple[torch.Tensor, ...], grad_outputs: tuple[torch.Tensor, ...]) -> None:
    grad_inputs[0].mul_(3)


def anew(grad_outputs: tuple[torch.Tensor, ...]) -> tuple[torch.Tensor, ...]:
    return tuple(g * 2 for g in grad_outputs)


class Clamp:
    def __call__(self, grad_outputs: tuple[torch.Tensor, ...]) -> None:
        grad_outputs[0].clamp_(max=0.5)


def backward(register: str, hook: Hook, function: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    w = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    h = w * 2
    a = function(h)
    getattr(a.grad_fn, register)(hook)
    ((a + (h + 2)) * WEIGHTS).sum().backward()
    assert w.grad is not None
    return w.grad


@pytest.mark.parametrize("function", [lambda h: h + 1, lambda h: h.view(3), Double.apply])
@pytest.mark.parametrize(
    ("register", "hook"),
    [
        ("register_prehook", before),
        ("register_prehook", Clamp()),
        ("register_prehook", functools.partial(before)),
        ("register_hook", after),
    ],
)
def test_a_gradient_that_another_branch_shares(
    register: str, hook: Hook, function: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    plain = backward(register, hook, function)
    examination = examine(lambda: backward(register, hook, function))
    assert torch.equal(examination.result, plain)
    (finding,) = examination.findings
    assert (finding.code, finding.state) == ("INP203", "confirmed")
    assert finding.gradients
    assert finding.modified is not None
    assert finding.modified.function in ("before", "after", "__call__")


@pytest.mark.parametrize(
    ("register", "hook", "function"),
    [
        ("register_prehook", anew, lambda h: h + 1),
        ("register_hook", lambda *_: None, lambda h: h + 1),
        ("register_hook", passed_on, torch.sin),  # a gradient of its own
    ],
)
def test_what_nobody_shares_is_clean(
    register: str, hook: Hook, function: Callable[[torch.Tensor], torch.Tensor]
) -> None:
    plain = backward(register, hook, function)
    examination = examine(lambda: backward(register, hook, function))
    assert torch.equal(examination.result, plain)
    assert examination.findings == []


def test_what_goes_on_to_two_is_shared() -> None:
    """The gradient of a sum is one tensor, and goes to both terms."""
    (finding,) = examine(lambda: backward("register_hook", passed_on, lambda h: h + (h * 3))).findings
    assert finding.code == "INP203"


def accumulated(register: str, hook: Hook) -> None:
    w = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
    h = w.expand_as(w)
    assert h.grad_fn is not None
    node: Any = h.grad_fn.next_functions[0][0]
    getattr(node, register)(hook)
    (h * WEIGHTS).sum().backward()


def test_before_accumulation_it_is_the_gradient_that_is_accumulated() -> None:
    assert examine(lambda: accumulated("register_prehook", before)).findings == []


def test_after_accumulation_the_leaf_may_have_taken_it() -> None:
    (finding,) = examine(lambda: accumulated("register_hook", after)).findings
    assert finding.code == "INP203"


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("in_place", [False, True])
def test_the_older_hooks_of_modules(in_place: bool) -> None:
    def hook(module: torch.nn.Module, grad_input: Any, grad_output: Any) -> None:
        if in_place:
            grad_output[0].mul_(3)

    def program() -> None:
        torch.manual_seed(0)
        layer = torch.nn.Linear(3, 3, bias=False)
        layer.register_backward_hook(hook)
        w = torch.ones(2, 3, requires_grad=True)
        other = w * 2
        ((layer(w * 1) + other) * WEIGHTS).sum().backward()

    assert [f.code for f in examine(program).findings] == ["INP203"] * in_place


def test_a_hook_that_is_removed_and_one_that_raises() -> None:
    def program() -> None:
        w = torch.ones(2, requires_grad=True)
        h = w * 2
        assert h.grad_fn is not None
        handle = h.grad_fn.register_prehook(before)
        handle.remove()
        h.sum().backward()
        h = w * 2
        assert h.grad_fn is not None
        h.grad_fn.register_hook(lambda *_: 1 / 0)
        h.sum().backward()

    examination = examine(program)
    assert isinstance(examination.error, ZeroDivisionError)
    assert examination.findings == []
