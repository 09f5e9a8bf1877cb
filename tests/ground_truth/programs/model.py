"""A generated program: its statements, one to a line, and the source text made of them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Mapping

Shape = tuple[int, ...]

LEAF = "leaf"  # requires grad, made by the user
INTER = "intermediate"  # has a grad_fn
BUFFER = "buffer"  # floating point, no gradient
INDEX = "index"
MASK = "mask"
JOINED = "joined buffer"  # a buffer that an in-place operation made part of a graph

HEADER = (
    "from collections import deque",
    "",
    "import numpy as np",
    "import torch",
    "import torch.nn.functional as F",
    "from torch import nn",
    "from torch.utils.checkpoint import checkpoint",
)


@dataclass(frozen=True)
class Var:
    """A tensor that the program has a name for; ``role`` is that of the memory it looks at."""

    name: str
    shape: Shape
    role: str
    memory: int
    high: int = 0  # for indices: values lie below
    dense: bool = True
    grad: bool = True


@dataclass(frozen=True)
class Statement:
    """One line of the program's body."""

    text: str
    write: bool = False
    closing: bool = False  # a backward that the latent variant of the program leaves out
    indent: int = 0


@dataclass(frozen=True)
class Program:
    """The statements of a program and how they came about."""

    name: str
    group: str
    statements: tuple[Statement, ...]
    prologue: tuple[str, ...] = ()  # module-level lines: classes and functions the program uses
    late: bool = False  # every write comes after the forward pass, and none of them draws random numbers
    target: str = ""  # in latent programs: the role of the only tensor that is written

    def source(self, *, writes: bool = True, closing: bool = True) -> str:
        """The text; what's switched off becomes ``pass``, so that line numbers stay."""
        lines = [*HEADER, *self.prologue, "", "", "def program():"]
        for statement in self.statements:
            on = (writes or not statement.write) and (closing or not statement.closing)
            lines.append("    " * (statement.indent + 1) + (statement.text if on else "pass"))
        return "\n".join(lines) + "\n"

    def without(self, dropped: set[int]) -> Program:
        """The program less some statements, for reduction."""
        kept = tuple(s for i, s in enumerate(self.statements) if i not in dropped)
        return replace(self, statements=kept)


@dataclass
class Builder:
    """A program in the making. All choices come from ``rng``, so that a seed or hypothesis decides them."""

    rng: random.Random
    dtype: str = "torch.float32"
    prelude: list[Statement] = field(default_factory=list)
    body: list[Statement] = field(default_factory=list)
    variables: dict[str, Var] = field(default_factory=dict)
    leaves: list[Var] = field(default_factory=list)
    indent: int = 0
    counter: int = 0
    plain_aliases: bool = True  # whether views without a gradient, such as ``h.detach()``, may be made
    rebinding: bool = True  # whether a statement may bind a name again
    written: str = ""

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def fresh(self, prefix: str) -> str:
        self.counter += 1
        return f"{prefix}{self.counter}"

    def emit(self, text: str, *, write: bool = False, closing: bool = False) -> None:
        self.body.append(Statement(text, write, closing, self.indent))

    def setup(self, text: str) -> None:
        """A statement before the training code, outside any loop."""
        self.prelude.append(Statement(text))

    def define(self, var: Var) -> Var:
        self.variables[var.name] = var
        return var

    def floats(self, condition: Callable[[Var], bool] = lambda _: True) -> list[Var]:
        roles = (LEAF, INTER, BUFFER)
        return [v for v in self.variables.values() if v.role in roles and condition(v)]

    def rebindable(self) -> list[str]:
        """Intermediates' names that may be bound again or deleted; in a loop, those bound in its body."""
        bound = {s.text.split(" = ")[0] for s in self.body} if self.rebinding else set()
        return [v.name for v in self.variables.values() if v.role == INTER and v.name in bound]

    def new_memory(self) -> int:
        self.counter += 1
        return self.counter

    def leaf(self, shape: Shape) -> Var:
        """A leaf of that shape: an old one or a new one, in one of several layouts."""
        known = [v for v in self.leaves if v.shape == shape]
        if known and self.chance(0.5):
            return self.rng.choice(known)
        name, size = self.fresh("w"), ", ".join(map(str, shape))
        made, dense = f"torch.randn({size}, dtype=dt)", True
        if len(shape) == 2 and self.chance(0.2):
            dense = False
            rows, columns = shape
            if self.chance(0.4):
                made = f"torch.randn({columns}, {rows}, dtype=dt).t()"
            else:
                self.setup(f"{name}_base = torch.randn({rows}, {2 * columns}, dtype=dt)")
                made = f"{name}_base[:, ::2]"
                memory = self.new_memory()
                self.define(Var(f"{name}_base", (rows, 2 * columns), BUFFER, memory, grad=False))
        self.setup(f"{name} = {made}.requires_grad_()")
        var = self.define(Var(name, shape, LEAF, self.new_memory(), dense=dense))
        self.leaves.append(var)
        return var

    def buffer(self, shape: Shape) -> Var:
        known = [v for v in self.variables.values() if v.role == BUFFER and v.shape == shape]
        if known and self.chance(0.5):
            return self.rng.choice(known)
        name, size = self.fresh("x"), ", ".join(map(str, shape))
        text = f"torch.randn({size}, dtype=dt)"
        if shape and self.chance(0.2):
            doubled = ", ".join(map(str, (2 * shape[0], *shape[1:])))
            text = f"torch.randn({doubled}, dtype=dt)[::2]"
        self.setup(f"{name} = {text}")
        return self.define(Var(name, shape, BUFFER, self.new_memory(), grad=False))

    def index(self, shape: Shape, high: int) -> Var:
        known = [v for v in self.variables.values() if v.role == INDEX and (v.shape, v.high) == (shape, high)]
        if known and self.chance(0.5):
            return self.rng.choice(known)
        name = self.fresh("i")
        self.setup(f"{name} = torch.randint(0, {high}, {shape})")
        return self.define(Var(name, shape, INDEX, self.new_memory(), high=high, grad=False))

    def mask(self, shape: Shape) -> Var:
        known = [v for v in self.variables.values() if v.role == MASK and v.shape == shape]
        if known and self.chance(0.5):
            return self.rng.choice(known)
        name, size = self.fresh("m"), ", ".join(map(str, shape))
        self.setup(f"{name} = torch.rand({size}) > 0.5")
        return self.define(Var(name, shape, MASK, self.new_memory(), grad=False))

    def module(self, prefix: str, text: str, parameters: Mapping[str, Shape]) -> str:
        """A module with its parameters as leaves."""
        name = self.fresh(prefix)
        self.setup(f"{name} = {text}")
        for attribute, shape in parameters.items():
            leaf = self.define(Var(f"{name}.{attribute}", shape, LEAF, self.new_memory()))
            self.leaves.append(leaf)
        return name
