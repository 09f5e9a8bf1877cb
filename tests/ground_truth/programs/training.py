"""Parts that programs are made of: a start, forward passes, losses, backward passes, optimizers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .model import INTER, LEAF, Builder, Program, Statement, Var
from .operations import operation
from .writes import write

if TYPE_CHECKING:
    import random

LOSSES = (
    "{a}.sum()", "{a}.mean()", "{a}.pow(2).sum()", "{a}.norm()", "torch.logsumexp({a}, -1).sum()",
    "({a} * {a}).mean()", "{a}.sin().sum()", "torch.tanh({a}).sum()", "({a} - 1.0).abs().sum()",
    "F.mse_loss({a}, torch.ones_like({a}))", "{a}.var()", "{a}.prod(dim=-1).sum()", "{a}.std() + {a}.sum()",
)  # fmt: skip
OPTIMIZERS = (
    "SGD({p}, lr=0.1)", "SGD({p}, lr=0.1, momentum=0.9, foreach=True)", "SGD({p}, lr=0.1, fused=True)",
    "Adam({p}, lr=0.05)", "Adam({p}, lr=0.05, foreach=True)", "Adam({p}, lr=0.05, fused=True)",
    "AdamW({p}, lr=0.05)", "AdamW({p}, lr=0.05, foreach=True)", "AdamW({p}, lr=0.05, fused=True)",
)  # fmt: skip


def forward(b: Builder, count: int, writes: float) -> None:
    """Operations with writes in between; ``writes`` is the chance of one after each operation."""
    for _ in range(count):
        operation(b)
        if b.chance(writes):
            write(b)
        if b.chance(0.04):
            delete(b)


def delete(b: Builder) -> None:
    """Drop a name: the graph, or a view, may keep the memory."""
    names = b.rebindable()
    if len(names) > 2:
        gone = b.rng.choice(names[:-1])
        del b.variables[gone]
        b.emit(f"del {gone}")


def loss(b: Builder) -> str:
    """The sum of one to three tensors' losses, so that every program has something to differentiate."""
    found = [v for v in b.floats() if v.grad and v.role != LEAF]
    found = [v for v in found if 0 not in v.shape] or found
    if not found:
        extra = b.fresh("h")
        b.emit(f"{extra} = {b.leaves[0].name} * {b.leaves[0].name}")
        found = [b.define(Var(extra, b.leaves[0].shape, INTER, b.new_memory()))]
    chosen = [found[-1], *b.rng.sample(found, b.rng.randrange(min(3, len(found))))]
    name = b.fresh("loss")
    terms = [b.rng.choice(LOSSES).format(a=v.name) for v in chosen]
    b.emit(f"{name} = {' + '.join(terms)}")
    return name


def late_writes(b: Builder, probability: float = 0.75) -> None:
    while b.chance(probability):
        write(b)
        probability *= 0.4


def record(b: Builder) -> None:
    """Keep what ``.grad`` holds now."""
    names = ", ".join(v.name for v in b.leaves)
    b.emit(f"grads.append([None if p.grad is None else p.grad.detach().clone() for p in ({names},)])")


def backward(b: Builder, name: str, *, retain: bool = False) -> None:
    b.emit(f"{name}.backward({'retain_graph=True' if retain else ''})", closing=not retain)
    record(b)


def partial_gradients(b: Builder, name: str, *, retain: bool = False, create: bool = False) -> str:
    """``torch.autograd.grad`` for some of the leaves."""
    chosen = b.rng.sample(b.leaves, b.rng.randrange(1, len(b.leaves) + 1))
    names = ", ".join(v.name for v in chosen)
    options = ", create_graph=True" if create else ", retain_graph=True" if retain else ""
    found = b.fresh("g")
    b.emit(f"{found} = torch.autograd.grad({name}, ({names},){options}, allow_unused=True)")
    b.emit(f"grads.append([None if g is None else g.detach().clone() for g in {found}])")
    return found


def make_optimizer(b: Builder) -> str:
    """An optimizer over the leaves so far; the fused kernels take no leaves with gaps."""
    name = b.fresh("opt")
    text = b.rng.choice(OPTIMIZERS)
    found = [v.name for v in b.leaves if v.dense or "fused" not in text]
    if not found:
        text, found = OPTIMIZERS[0], [v.name for v in b.leaves]
    b.setup(f"{name} = torch.optim.{text.format(p='[' + ', '.join(found) + ']')}")
    return name


def start(rng: random.Random) -> Builder:
    """A builder that has an input, a leaf and one operation on them."""
    b = Builder(rng)
    b.dtype = rng.choices(("torch.float32", "torch.float64"), (3, 1))[0]
    b.setup(f"torch.manual_seed({rng.randrange(1000)})")
    b.setup(f"dt = {b.dtype}")
    b.setup("grads = []")
    rows = 0 if b.chance(0.02) else rng.choice((2, 3, 4))
    x = b.buffer((rows, rng.choice((3, 4))))
    w = b.leaf((x.shape[1], rng.choice((3, 4))))
    name = b.fresh("h")
    b.emit(f"{name} = {x.name} @ {w.name}")
    b.define(Var(name, (rows, w.shape[1]), INTER, b.new_memory()))
    return b


def finish(b: Builder, name: str, group: str, **facts: object) -> Program:
    statements = (*b.prelude, *b.body, Statement("return grads"))
    return Program(name, group, statements, **facts)  # type: ignore[arg-type]
