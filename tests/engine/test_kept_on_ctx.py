"""A Function may keep a tensor for backward in many ways; written or exchanged meanwhile, it is INP201."""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from pytest_inplace.engine.guard import examine
from pytest_inplace.engine.reach import tensors_in
from pytest_inplace.reports.findings import Finding

GLOBAL: dict[str, torch.Tensor] = {}


@dataclasses.dataclass
class Box:
    x: Any


@dataclasses.dataclass
class Slotted:
    __slots__ = ("x",)
    x: Any


class Items(dict[str, Any]):
    def __init__(self, x: Any) -> None:
        self.x = x


Pair = collections.namedtuple("Pair", "first second")


def keyword_default(x: torch.Tensor) -> Callable[[], torch.Tensor]:
    def give(*, value: torch.Tensor = x) -> torch.Tensor:
        return value

    return give


def holder(x: torch.Tensor) -> nn.Module:
    module = nn.Module()
    module.register_buffer("x", x.detach())
    return module


KEEP: dict[str, tuple[Callable[[torch.Tensor], Any], Callable[[Any], torch.Tensor]]] = {
    "attribute": (lambda x: x, lambda kept: kept),
    "detached": (lambda x: x.detach(), lambda kept: kept),
    "view": (lambda x: x.view(-1), lambda kept: kept),
    "named tuple": (lambda x: Pair(x, 1), lambda kept: kept.first),
    "dataclass": (Box, lambda kept: kept.x),
    "slots": (Slotted, lambda kept: kept.x),
    "deque": (lambda x: collections.deque([x]), lambda kept: kept[0]),
    "default dictionary": (lambda x: collections.defaultdict(list, x=[x]), lambda kept: kept["x"][0]),
    "attribute of a dictionary": (Items, lambda kept: kept.x),
    "deep": (lambda x: [[[[[[x]]]]]], lambda kept: kept[0][0][0][0][0][0]),
    "partial": (lambda x: functools.partial(torch.mul, x), lambda kept: kept(1)),
    "bound method": (lambda x: x.mul, lambda kept: kept(1)),
    "keyword default": (keyword_default, lambda kept: kept()),
    "weak reference": (weakref.ref, lambda kept: kept()),
    "iterator": (lambda x: itertools.cycle([x]), next),
    "module": (holder, lambda kept: kept.x),
    "array": (lambda x: x.detach().numpy(), lambda kept: torch.tensor(kept)),
    "array not to be written": (
        lambda x: np.broadcast_to(x.detach().numpy(), (2, 3)),
        lambda kept: torch.tensor(kept[0]),
    ),
    "memory view": (lambda x: memoryview(x.detach().numpy()), lambda kept: torch.tensor(kept.tolist())),
    "storage": (lambda x: x.untyped_storage(), lambda kept: torch.tensor([]).set_(kept, 0, (3,))),
}


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, how: str) -> torch.Tensor:
        ctx.kept, ctx.how = KEEP[how][0](x), how
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return 2 * KEEP[ctx.how][1](ctx.kept) * grad, None


class ByGlobal(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        GLOBAL["x"] = x
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return 2 * GLOBAL["x"] * grad


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, scales: list[torch.Tensor]) -> torch.Tensor:
        ctx.scales = scales
        return x * scales[0]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * ctx.scales[0], None


class CountsOnCtx(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.seen = torch.zeros(())
        return x * 1

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        ctx.seen = ctx.seen + 1
        return grad


def leaf() -> torch.Tensor:
    return torch.tensor([1.0, 2.0, 3.0], requires_grad=True)


def found(program: Callable[[], Any]) -> list[Finding]:
    examination = examine(program)
    assert examination.error is None
    assert not examination.coverage.reasons
    return examination.findings


def test_kept_and_untouched() -> None:
    def program() -> None:
        for how in KEEP:
            h = leaf() * 2
            Square.apply(h, how).sum().backward()
            h.add_(1)

    assert found(program) == []


@pytest.mark.parametrize("how", KEEP)
def test_however_it_is_kept(how: str) -> None:
    def program() -> None:
        h = leaf() * 2
        y = Square.apply(h, how)  # saved
        h.add_(1)  # written
        y.sum().backward()

    (finding,) = found(program)
    assert finding.code == "INP201"
    assert finding.saved is not None
    assert finding.saved.source is not None
    assert finding.saved.source.endswith("# saved")
    assert finding.modified is not None
    assert finding.modified.source is not None
    assert finding.modified.source.endswith("# written")
    assert finding.gradients[0].max_abs == pytest.approx(4.0)


@pytest.mark.parametrize("write", [False, True])
def test_kept_in_a_global_that_forward_and_backward_read(write: bool) -> None:
    def program() -> None:
        h = leaf() * 2
        y = ByGlobal.apply(h)
        if write:
            h.add_(1)
        y.sum().backward()

    assert [finding.code for finding in found(program)] == ["INP201"] * write


@pytest.mark.parametrize(("new", "codes"), [([5.0, 5.0, 5.0], ["INP201"]), ([2.0, 2.0, 2.0], []), (None, [])])
def test_another_tensor_put_in_its_place(new: list[float] | None, codes: list[str]) -> None:
    def program() -> None:
        scales = [torch.tensor([2.0, 2.0, 2.0])]
        y = Scaled.apply(leaf(), scales)
        if new is not None:
            scales[0] = torch.tensor(new)  # exchanged
        y.sum().backward()

    findings = found(program)
    assert [finding.code for finding in findings] == codes
    for finding in findings:
        assert finding.modified is not None
        assert finding.modified.source is not None
        assert finding.modified.source.endswith("# exchanged")


def test_what_backward_itself_puts_on_its_ctx() -> None:
    def program() -> None:
        y = CountsOnCtx.apply(leaf()).sum()
        y.backward(retain_graph=True)
        y.backward(retain_graph=True)
        y.backward()

    assert found(program) == []


def test_a_walk_ends() -> None:
    first: list[Any] = [torch.ones(1)]
    first.append(first)
    assert [name for name, _ in tensors_in(first, "kept")] == ["kept[0]"]
    assert len(tensors_in([torch.ones(1) for _ in range(5000)], "kept")) <= 2000


class KeepsResult(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.result = x.exp()
        return ctx.result  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return ctx.result * grad  # type: ignore[no-any-return]


def an_input() -> None:
    h = leaf() * 2
    y = Square.apply(h, "attribute")
    h.mul_(2)  # written
    assert y.shape == h.shape


def an_input_of_a_graph_that_is_gone() -> None:
    h = leaf() * 2
    Square.apply(h, "attribute").sum()
    y = Square.apply(h, "attribute").sum()
    h.mul_(2)  # written
    del y
    torch.ones(3)


def a_result_in_a_cycle() -> None:
    y = KeepsResult.apply(leaf())
    y.mul_(2)  # written


def under_hooks() -> None:
    with torch.autograd.graph.save_on_cpu():
        y = torch.sigmoid(leaf())
    y.mul_(2)  # written


@pytest.mark.parametrize(
    ("program", "code"),
    [
        (an_input, "INP201"),
        (an_input_of_a_graph_that_is_gone, "INP201"),
        (a_result_in_a_cycle, "INP201"),
        (under_hooks, "INP205"),
    ],
)
def test_written_and_never_used(program: Callable[[], None], code: str) -> None:
    (finding,) = found(program)
    assert (finding.code, finding.state) == (code, "latent")
    assert finding.modified is not None
    assert finding.modified.source is not None
    assert finding.modified.source.endswith("# written")


def a_leaf() -> None:
    w = leaf()
    y = Square.apply(w, "attribute")
    w.data.add_(1)
    assert y.shape == w.shape


def after_its_backward() -> None:
    h = leaf() * 2
    Square.apply(h, "attribute").sum().backward()
    h.mul_(2)


def before_an_error_that_is_expected() -> None:
    h = leaf() * 2
    y = Square.apply(h, "attribute").sum()
    h.mul_(2)
    z = leaf().exp()
    z.mul_(2)
    with pytest.raises(RuntimeError, match="inplace"):
        (z.sum() + y).backward()


@pytest.mark.parametrize("program", [a_leaf, after_its_backward, before_an_error_that_is_expected])
def test_written_as_is_normal(program: Callable[[], None]) -> None:
    assert found(program) == []


class Batched(torch.autograd.Function):
    """Under vmap its ctx keeps a wrapper that has neither the memory nor the version of what is inside."""

    generate_vmap_rule = True

    @staticmethod
    def forward(x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        return x.sin() * factor

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, ...], output: torch.Tensor) -> None:
        x, ctx.factor = inputs
        ctx.save_for_backward(x)

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad * ctx.saved_tensors[0].cos() * ctx.factor, None


@pytest.mark.parametrize("write", [False, True])
def test_what_a_ctx_keeps_under_vmap(write: bool) -> None:
    def program() -> torch.Tensor:
        w = torch.arange(6.0).view(2, 3).requires_grad_()
        factor = torch.tensor([2.0, 3.0])
        y = torch.vmap(Batched.apply)(w * 1, factor)
        if write:
            factor.mul_(3)
        y.sum().backward()
        assert w.grad is not None
        return w.grad

    plain, examination = program(), examine(program)
    assert torch.equal(examination.result, plain)
    assert [(f.code, f.state) for f in examination.findings] == [("INP201", "confirmed")] * write


class Kept(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        return grad * ctx.factor, None


kept = Kept.apply  # as the documentation of PyTorch does it, before anything is watched


@pytest.mark.parametrize("write", [False, True])
def test_a_function_whose_apply_was_taken_before(write: bool) -> None:
    def program() -> None:
        factor = torch.tensor([2.0, 3.0])
        y = kept(torch.ones(2, requires_grad=True) * 1, factor)
        if write:
            factor.mul_(2)
        y.sum().backward()

    assert [f.code for f in examine(program).findings] == ["INP201"] * write


def test_apply_is_what_it_was_after_that() -> None:
    function = torch.autograd.Function.__dict__["apply"]
    code = function.__func__.__code__
    examine(lambda: kept(torch.ones(2, requires_grad=True), torch.ones(2)).sum().backward())
    assert torch.autograd.Function.__dict__["apply"] is function
    assert function.__func__.__code__ is code
