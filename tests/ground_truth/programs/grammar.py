"""Random training programs: which statements, in which order, and where the writes go."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import TYPE_CHECKING

from . import flagged
from .model import BUFFER, INTER, LEAF, Builder, Program, Statement
from .operations import operation
from .training import (
    backward,
    finish,
    forward,
    late_writes,
    loss,
    make_optimizer,
    partial_gradients,
    start,
)
from .writes import write

if TYPE_CHECKING:
    from collections.abc import Callable

MAIN = "main"
LATENT = "latent"
GROUPS = (MAIN, LATENT, *flagged.GROUPS)


def single(b: Builder) -> None:
    """Forward, backward."""
    forward(b, b.rng.randrange(3, 10), 0.1)
    name = loss(b)
    late_writes(b)
    if b.chance(0.2):
        partial_gradients(b, name)
    else:
        backward(b, name)
    if b.chance(0.15):
        write(b)


def repeated(b: Builder) -> None:
    """Several backward passes over one graph, writes in between."""
    forward(b, b.rng.randrange(3, 8), 0.06)
    name = loss(b)
    for _ in range(b.rng.randrange(1, 3)):
        late_writes(b, 0.25)
        if b.chance(0.5):
            backward(b, name, retain=True)
        else:
            partial_gradients(b, name, retain=True)
    late_writes(b, 0.6)
    backward(b, name)


def shared_trunk(b: Builder) -> None:
    """Two losses; something, often an optimizer step, happens after the first one's backward."""
    forward(b, b.rng.randrange(2, 5), 0.05)
    optimizer = make_optimizer(b)
    first = loss(b)
    forward(b, b.rng.randrange(1, 4), 0.05)
    second = loss(b)
    backward(b, first, retain=True)
    if b.chance(0.5):
        b.emit(f"{optimizer}.step()", write=True)
    late_writes(b, 0.4)
    backward(b, second)


def second_order(b: Builder) -> None:
    """Gradients of gradients."""
    forward(b, b.rng.randrange(2, 6), 0.06)
    name = loss(b)
    late_writes(b, 0.3)
    found = partial_gradients(b, name, create=True)
    late_writes(b, 0.5)
    b.emit(f"penalty = sum((g * g).sum() for g in {found} if g is not None and g.requires_grad)")
    late_writes(b, 0.3)
    b.emit("penalty = penalty if torch.is_tensor(penalty) else " + name)
    backward(b, "penalty" if b.chance(0.5) else f"({name} + penalty)")


def training_loop(b: Builder) -> None:
    """A few training steps; in some, the optimizer steps at a wrong place."""
    # The first operation belongs into the loop: its graph is gone after the first backward.
    b.body = [replace(s, indent=1) for s in b.body]
    b.indent = 1
    forward(b, b.rng.randrange(2, 6), 0.06)
    optimizer = make_optimizer(b)
    name = loss(b)
    late_writes(b, 0.3)
    early = b.chance(0.35)
    if early:
        b.emit(f"{optimizer}.step()", write=True)
    backward(b, name)
    if not early:
        b.emit(f"{optimizer}.step()", write=True)
        if b.chance(0.7):
            b.emit(f"{optimizer}.zero_grad()")
    b.indent, inner = 0, b.body
    b.body = [Statement(f"for step in range({b.rng.randrange(2, 4)}):"), *inner]


def recurrent(b: Builder) -> None:
    """State carried from step to step, one backward at the end or one in each step."""
    outer, b.body = b.body, []
    start = b.floats(lambda v: v.grad and len(v.shape) == 2)[-1]
    b.indent = 1
    # The operations draw on whatever is there; the state's shape stays because only a scalar is added.
    forward(b, b.rng.randrange(1, 4), 0.08)
    result = b.floats(lambda v: v.grad and v.role == INTER)
    last = result[-1].name if result else start.name
    b.emit(f"{start.name} = torch.tanh({start.name} + {last}.mean())")
    if b.chance(0.3):
        write(b)
    b.emit(f"total = total + {start.name}.sum()")
    late_writes(b, 0.15)
    b.indent, inner = 0, b.body
    b.body = [*outer, Statement("total = 0.0"), Statement("for step in range(3):"), *inner]
    late_writes(b, 0.2)
    backward(b, "total")


TEMPLATES: tuple[tuple[Callable[[Builder], None], int], ...] = (
    (single, 48), (repeated, 14), (shared_trunk, 10), (second_order, 10), (training_loop, 10), (recurrent, 8),
)  # fmt: skip


def generate(rng: random.Random, group: str = MAIN, name: str = "random") -> Program:
    """One program; its choices come from ``rng`` alone."""
    if group in flagged.GROUPS:
        return flagged.generate(rng, group, name)
    b = start(rng)
    if group == LATENT:
        return latent(b, name)
    template = rng.choices([t for t, _ in TEMPLATES], [w for _, w in TEMPLATES])[0]
    template(b)
    program = finish(b, name, group)
    return replace(program, late=template is single and _writes_are_late(program))


def _writes_are_late(program: Program) -> bool:
    """Whether no write comes before the loss of a program with one loss and one backward."""
    texts = [s.text for s in program.statements]
    computed = next(i for i, text in enumerate(texts) if text.startswith("loss"))
    return not any(s.write for s in program.statements[:computed])


def latent(b: Builder, name: str) -> Program:
    """A graph that no backward pass runs over, and one write: into it or after it."""
    b.plain_aliases = False
    forward(b, b.rng.randrange(3, 7), 0.0)
    late = b.chance(0.6)
    roles = b.rng.choices(((INTER,), (LEAF,), (BUFFER,)), (6, 3, 2))[0]
    if not late:
        write(b, roles)
        operation(b)
    root = loss(b)
    if late:
        write(b, roles)
    backward(b, root)
    return finish(b, name, LATENT, late=late, target=b.written)


def from_seed(seed: int, group: str = MAIN) -> Program:
    return generate(random.Random(f"{group}:{seed}"), group, f"{group}-{seed}")
