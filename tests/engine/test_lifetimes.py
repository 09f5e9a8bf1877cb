"""Objects die when they would have died: nothing is kept longer than autograd keeps it."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

from pytest_inplace.engine.ledger import Ledger, Record
from pytest_inplace.engine.watch import Watch


@pytest.fixture
def ledger() -> Iterator[Ledger]:
    watch = Watch(Ledger())
    watch.start()
    yield watch.ledger
    watch.stop()


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):  # type: ignore[no-untyped-def]
        out = x.exp()
        ctx.save_for_backward(x, out)
        return out

    @staticmethod
    def backward(ctx, grad):  # type: ignore[no-untyped-def]
        return grad * ctx.saved_tensors[1]


w = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)

GRAPHS: dict[str, Callable[[], torch.Tensor]] = {
    "output": lambda: (w * 2).exp(),
    "input": lambda: (w * 2).sin(),
    "in place": lambda: (w * 2).relu_(),
    "in place that saves what it overwrites": lambda: (w * 2).copysign_(torch.ones(2, 2)),
    "in place on a view": lambda: (w * 2).view(-1).exp_(),
    "foreach": lambda: torch._foreach_exp([w * 1, w * 2])[0],
    "several outputs": lambda: torch.linalg.qr(w * 2)[0],
    "chain of outputs": lambda: (w * 2).sigmoid().tanh().softmax(0),
    "function": lambda: Twice.apply(w * 2),
    "function of function": lambda: Twice.apply(Twice.apply(w)),
    "lstm": lambda: nn.LSTM(2, 3)(w.unsqueeze(1))[0],
    "batch norm": lambda: nn.BatchNorm1d(2)(w * 2),
    "attention": lambda: nn.functional.scaled_dot_product_attention(
        w[None, None], w[None, None], w[None, None]
    ),
    "checkpoint": lambda: torch.utils.checkpoint.checkpoint(torch.sin, w * 2, use_reentrant=False),
}


@pytest.mark.parametrize("name", GRAPHS)
@pytest.mark.parametrize("backward", [False, True], ids=["dropped", "after backward"])
def test_records_die_with_the_graph(name: str, backward: bool, ledger: Ledger) -> None:
    gc.collect()
    result = GRAPHS[name]()
    assert ledger.saves > 0
    if backward:
        result.sum().backward()
    del result
    # No garbage collection: autograd's graphs die by reference counting alone.
    assert ledger.alive() == []


def test_tensors_die_with_the_graph(ledger: Ledger) -> None:
    h = w * 2
    y = h.exp()
    kept_by_graph, output = weakref.ref(h), weakref.ref(y)
    z = y.sin()
    del h, y
    z.sum().backward()
    del z
    assert kept_by_graph() is None
    assert output() is None


def test_backward_frees_saved_tensors(ledger: Ledger) -> None:
    h = w * 2
    y = h.sin()
    y.sum().backward()
    freed = weakref.ref(h)
    del h
    assert freed() is None
    assert y.grad_fn is not None


def test_many_live_graphs_cost_nothing_after_the_watch() -> None:
    watch = Watch(Ledger())
    watch.start()
    held = (w * 2).exp()
    watch.stop()
    assert len([o for o in gc.get_objects() if issubclass(type(o), Record)]) >= 1
    held.sum().backward()  # used after the watch: as in plain PyTorch
    assert w.grad is not None
