"""Programs in which an outer pair of saved-tensor hooks doesn't see everything that backward will use.

Copying what is saved tells nothing there. Instead every write comes after the forward pass, so the right
gradients are those of the same program without its writes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .model import INTER, LEAF, Builder, Program, Var
from .operations import operation
from .training import backward, finish, late_writes, loss, start
from .writes import write

if TYPE_CHECKING:
    import random
    from collections.abc import Callable

HOOKS = "hooks"
OFFLOAD = "offload"
CHECKPOINT = "checkpoint"
FUNCTION = "function"
GROUPS = (HOOKS, OFFLOAD, CHECKPOINT, FUNCTION)

PAIRS = (
    "lambda t: t, lambda t: t",
    "lambda t: t.detach(), lambda t: t",
    "lambda t: (t, t._version), lambda kept: kept[0]",
    "lambda t: t.clone(), lambda t: t",
    "lambda t: t.numpy().copy(), torch.from_numpy",
    "lambda t: t.numpy(), torch.from_numpy",
    "lambda t: {'kept': [t.view_as(t)]}, lambda kept: kept['kept'][0]",
    "lambda t: deque([t]), lambda kept: kept[0]",
    "lambda t: memoryview(t.numpy()), lambda kept: torch.from_numpy(np.asarray(kept))",
)

RIGHT_FUNCTION = (
    "", "",
    "class Scaled(torch.autograd.Function):",
    "    @staticmethod",
    "    def forward(ctx, a, b):",
    "        ctx.save_for_backward(a, b)",
    "        return a * b.tanh()",
    "",
    "    @staticmethod",
    "    def backward(ctx, grad):",
    "        a, b = ctx.saved_tensors",
    "        return grad * b.tanh(), grad * a * (1 - b.tanh() ** 2)",
)  # fmt: skip
OUTPUT_FUNCTION = (
    "", "",
    "class Scaled(torch.autograd.Function):",
    "    @staticmethod",
    "    def forward(ctx, a, b):",
    "        out = torch.sigmoid(a * b)",
    "        ctx.save_for_backward(a, b, out)",
    "        return out",
    "",
    "    @staticmethod",
    "    def backward(ctx, grad):",
    "        a, b, out = ctx.saved_tensors",
    "        inner = grad * out * (1 - out)",
    "        return inner * b, inner * a",
)  # fmt: skip
ATTRIBUTE_FUNCTION = (
    "", "",
    "class Scaled(torch.autograd.Function):",
    "    @staticmethod",
    "    def forward(ctx, a, b):",
    "        ctx.a, ctx.b = a, b",
    "        return a * b.tanh()",
    "",
    "    @staticmethod",
    "    def backward(ctx, grad):",
    "        return grad * ctx.b.tanh(), grad * ctx.a * (1 - ctx.b.tanh() ** 2)",
)  # fmt: skip
VIEWS_FUNCTION = (
    "", "",
    "class Scaled(torch.autograd.Function):",
    "    @staticmethod",
    "    def forward(a, b):",
    "        return a * b.tanh()",
    "",
    "    @staticmethod",
    "    def setup_context(ctx, inputs, output):",
    "        a, b = inputs",
    "        ctx.a, ctx.b = a.view_as(a), b.detach().view_as(b)",
    "",
    "    @staticmethod",
    "    def backward(ctx, grad):",
    "        return grad * ctx.b.tanh(), grad * ctx.a * (1 - ctx.b.tanh() ** 2)",
)  # fmt: skip
SLOTS_FUNCTION = (
    "", "",
    "class Kept:",
    "    __slots__ = ('a', 'rest')",
    "",
    "    def __init__(self, a, b):",
    "        self.a, self.rest = a, deque([b])",
    "", "",
    "class Scaled(torch.autograd.Function):",
    "    @staticmethod",
    "    def forward(ctx, a, b):",
    "        ctx.kept = Kept(a, b)",
    "        return a * b.tanh()",
    "",
    "    @staticmethod",
    "    def backward(ctx, grad):",
    "        a, (b,) = ctx.kept.a, ctx.kept.rest",
    "        return grad * b.tanh(), grad * a * (1 - b.tanh() ** 2)",
)  # fmt: skip
RESULT_FUNCTION = (
    "", "",
    "class Scaled(torch.autograd.Function):",
    "    @staticmethod",
    "    def forward(ctx, a, b):",
    "        out = torch.sigmoid(a * b)",
    "        ctx.inputs, ctx.result = a.mul, out",
    "        ctx.save_for_backward(a, b)",
    "        return out",
    "",
    "    @staticmethod",
    "    def backward(ctx, grad):",
    "        a, b = ctx.saved_tensors",
    "        inner = grad * ctx.result * (1 - ctx.result)",
    "        return inner * b, ctx.inputs(inner)",
)  # fmt: skip
FUNCTIONS = (
    RIGHT_FUNCTION, OUTPUT_FUNCTION, ATTRIBUTE_FUNCTION, VIEWS_FUNCTION, SLOTS_FUNCTION, RESULT_FUNCTION,
)  # fmt: skip


def _block(b: Builder, head: str, count: int) -> None:
    """Operations inside a ``with`` or ``def`` block."""
    b.emit(head)
    b.indent = 1
    for _ in range(count):
        operation(b)
    b.indent = 0


def _hooks(b: Builder) -> tuple[str, ...]:
    pair = b.rng.choice(PAIRS)
    _block(b, f"with torch.autograd.graph.saved_tensors_hooks({pair}):", b.rng.randrange(1, 5))
    return ()


def _offload(b: Builder) -> tuple[str, ...]:
    _block(b, "with torch.autograd.graph.save_on_cpu():", b.rng.randrange(1, 5))
    return ()


def _checkpoint(b: Builder) -> tuple[str, ...]:
    """Non-reentrant checkpointing of a nested function, with a tensor argument and captured tensors."""
    made = [v for v in b.floats() if v.role == INTER and v.grad] or b.floats(lambda v: v.grad)
    argument = b.rng.choice(made)
    outside = set(b.variables)
    b.emit("def block(a):")
    b.indent = 1
    inner = b.define(Var("a", argument.shape, INTER, b.new_memory()))
    body = b.fresh("h")
    b.emit(f"{body} = torch.tanh(a) * {argument.name}")
    b.define(Var(body, inner.shape, INTER, b.new_memory()))
    before = set(b.variables)
    for _ in range(b.rng.randrange(1, 4)):
        operation(b)
    new = [v for v in b.variables.values() if v.name not in before and v.role == INTER and v.grad]
    result = new[-1] if new else b.variables[body]
    b.emit(f"return {result.name}")
    b.indent = 0
    # What was made inside the block has no name outside; leaves and buffers are made in the prelude.
    outside |= {s.text.split(" = ")[0] for s in b.prelude}
    b.variables = {n: v for n, v in b.variables.items() if n in outside or "." in n}
    name = b.fresh("h")
    b.emit(f"{name} = checkpoint(block, {argument.name}, use_reentrant=False)")
    b.define(Var(name, result.shape, INTER, b.new_memory()))
    return ()


def _function(b: Builder) -> tuple[str, ...]:
    # A deletion may have left no intermediate; a leaf serves as well.
    made = [v for v in b.floats() if v.role == INTER and v.grad] or b.floats(lambda v: v.grad)
    a = b.rng.choice(made)
    same = b.floats(lambda v: v.shape == a.shape and v.grad)
    other = b.rng.choice(same) if b.chance(0.5) else b.leaf(a.shape)
    name = b.fresh("h")
    b.emit(f"{name} = Scaled.apply({a.name}, {other.name})")
    b.define(Var(name, a.shape, INTER, b.new_memory()))
    return b.rng.choice(FUNCTIONS)


_SPECIAL: dict[str, Callable[[Builder], tuple[str, ...]]] = {
    HOOKS: _hooks,
    OFFLOAD: _offload,
    CHECKPOINT: _checkpoint,
    FUNCTION: _function,
}


def generate(rng: random.Random, group: str, name: str) -> Program:
    """A forward pass that contains the group's construct, then writes, then backward."""
    b = start(rng)
    b.rebinding = group != CHECKPOINT  # a name bound in the block would hide the one outside
    for _ in range(rng.randrange(1, 4)):
        operation(b)
    prologue = _SPECIAL[group](b)
    for _ in range(rng.randrange(0, 3)):
        operation(b)
    root = loss(b)
    write(b, (INTER, INTER, LEAF) if b.chance(0.5) else None)
    late_writes(b, 0.4)
    backward(b, root)
    return finish(b, name, group, prologue=prologue, late=True)
