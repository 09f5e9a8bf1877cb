"""Differentiable statements: each takes some tensors of the program and gives the next one."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .model import BUFFER, INDEX, INTER, LEAF, Builder, Shape, Var

if TYPE_CHECKING:
    from collections.abc import Callable

# An expression, its shape, and the variable whose memory it looks at, if it's a view.
Result = tuple[str, Shape, "Var | None"]
LIMIT = 64

UNARY = (
    "torch.tanh({a})", "torch.sigmoid({a})", "torch.exp({a})", "torch.relu({a})", "torch.sin({a})",
    "torch.cos({a})", "{a} ** 2", "{a} * 0.5", "{a} + 1.0", "torch.exp(-{a}.abs())", "F.softmax({a}, dim=-1)",
    "F.log_softmax({a}, dim=-1)", "F.gelu({a})", "F.silu({a})", "F.leaky_relu({a}, 0.1)", "F.softplus({a})",
    "torch.sqrt({a}.abs() + 0.1)", "torch.cumprod({a}, dim=-1)", "torch.cumsum({a}, dim=0)",
    "F.layer_norm({a}, ({a}.shape[-1],))", "torch.where({a} > 0, {a}, 0.1 * {a})", "F.dropout({a}, 0.3)",
    "torch.clamp({a}, -1.0, 1.0)", "1.0 / ({a} * {a} + 1.0)", "{a}.abs()", "{a}.clone()", "F.hardtanh({a})",
    "torch.flip({a}, [0])", "torch.rsqrt({a} * {a} + 0.5)", "F.normalize({a}, dim=-1)", "torch.erf({a})",
    "torch.atan({a})", "F.elu({a})", "{a} / {a}.norm()", "{a} * {a}.prod(dim=-1, keepdim=True)",
    "{a} - {a}.logsumexp(dim=-1, keepdim=True)", "{a} / ({a}.std() + 1.0)", "F.mish({a})",
    "torch.relu_({a} * 1.5)", "F.relu({a} + 0.1, inplace=True)", "{a}.pow(3)", "torch.tan({a} * 0.3)",
    "F.rms_norm({a}, ({a}.shape[-1],))",
)  # fmt: skip
BINARY = (
    "{a} * {b}", "{a} + {b}", "{a} - {b}", "{a} / ({b} * {b} + 0.5)", "torch.maximum({a}, {b})",
    "torch.atan2({a}, {b} + 3.0)", "torch.lerp({a}, {b}, 0.3)", "torch.addcmul({a}, {b}, {a}, value=0.5)",
    "torch.hypot({a}, {b})", "torch.stack([{a}, {b}]).mean(0)", "F.mse_loss({a}, {b}, reduction='none')",
    "{a} * torch.sigmoid({b})", "{a} @ ({b}.t() @ {a})", "F.smooth_l1_loss({a}, {b}, reduction='none')",
    "F.scaled_dot_product_attention({a}[None], {b}[None], {b}[None])[0]",
)  # fmt: skip


def unary(b: Builder, a: Var) -> Result:
    return b.rng.choice(UNARY).format(a=a.name), a.shape, None


def binary(b: Builder, a: Var) -> Result | None:
    same = b.floats(lambda v: v.shape == a.shape)
    other = b.rng.choice(same) if same and b.chance(0.75) else b.leaf(a.shape)
    first, second = (a, other) if b.chance(0.5) else (other, a)
    return b.rng.choice(BINARY).format(a=first.name, b=second.name), a.shape, None


def linear(b: Builder, a: Var) -> Result | None:
    rows, columns = a.shape
    width = b.rng.choice((columns, columns, 3, 4))
    form = b.rng.randrange(6)
    if form == 0:
        return f"F.linear({a.name}, {b.leaf((width, columns)).name})", (rows, width), None
    if form == 1:
        sizes = {"weight": (width, columns), "bias": (width,)}
        name = b.module("lin", f"nn.Linear({columns}, {width}, dtype=dt)", sizes)
        return f"{name}({a.name})", (rows, width), None
    w = b.leaf((columns, width)).name
    if form == 2:
        return f"torch.addmm({b.leaf((width,)).name}, {a.name}, {w})", (rows, width), None
    if form == 3:
        return f"torch.einsum('ij,jk->ik', {a.name}, {w})", (rows, width), None
    return f"{a.name} @ {w}", (rows, width), None


def affine(b: Builder, a: Var) -> Result | None:
    """Broadcast against a vector."""
    vector = b.leaf(a.shape[-1:]) if b.chance(0.7) else b.buffer(a.shape[-1:])
    template = b.rng.choice(
        ("{a} * {v}", "{a} + {v}", "{a} / ({v} ** 2 + 0.5)", "F.layer_norm({a}, ({n},), {v})")
    )
    return template.format(a=a.name, v=vector.name, n=a.shape[-1]), a.shape, None


def view(b: Builder, a: Var) -> Result | None:
    rows, columns = a.shape
    half_rows, half_columns = (rows + 1) // 2, (columns + 1) // 2
    forms: list[tuple[str, Shape]] = [
        ("{a}.t()", (columns, rows)),
        ("{a}[:, ::2]", (rows, half_columns)),
        ("{a}[::2]", (half_rows, columns)),
        ("{a}.transpose(0, 1)", (columns, rows)),
    ]
    if b.plain_aliases:
        forms.append(("{a}.reshape(1, -1)", (1, rows * columns)))  # a view or a copy
    if rows > 1 and columns > 1:
        forms += [
            ("{a}[1:]", (rows - 1, columns)),
            ("{a}[:, 1:]", (rows, columns - 1)),
            ("{a}.narrow(1, 0, 2)", (rows, 2)),
            ("{a}.select(0, 0).unsqueeze(0)", (1, columns)),
            ("{a}.unbind(0)[0].unsqueeze(0)", (1, columns)),
            ("{a}.unbind(0)[1][None].expand(3, -1)", (3, columns)),
            ("torch.chunk({a}, 2, dim=1)[0]", (rows, half_columns)),
            ("torch.split({a}, 1)[1]", (1, columns)),
            ("{a}[:1].expand(2, -1)", (2, columns)),
            ("{a}.diagonal().unsqueeze(0)", (1, min(rows, columns))),
        ]
        if b.chance(0.15):
            return f"{a.name}.detach()", a.shape, a
    template, shape = b.rng.choice(forms)
    return template.format(a=a.name), shape, a


def indexed(b: Builder, a: Var) -> Result | None:
    rows, columns = a.shape
    if 0 in a.shape:
        return None
    form = b.rng.randrange(8)
    if form == 0:
        return f"{a.name}[{b.index((3,), rows).name}]", (3, columns), None
    if form == 1:
        return f"torch.index_select({a.name}, 0, {b.index((3,), rows).name})", (3, columns), None
    if form == 2:
        return f"torch.gather({a.name}, 1, {b.index((rows, 3), columns).name})", (rows, 3), None
    if form == 3:
        table = b.leaf((5, columns))
        return f"F.embedding({b.index((rows,), 5).name}, {table.name}) * {a.name}", a.shape, None
    if form == 4:
        return f"{a.name}.masked_fill({b.mask(a.shape).name}, 0.5)", a.shape, None
    if form == 5:
        other = b.leaf(a.shape)
        return f"torch.where({b.mask(a.shape).name}, {a.name}, {other.name})", a.shape, None
    if form == 6:
        index = b.index((rows,), rows)
        return f"{a.name}.index_add(0, {index.name}, {b.leaf(a.shape).name})", a.shape, None
    values, where = b.fresh("top"), b.fresh("i")
    # The statement gives two tensors; the indices are saved for backward, and are anyone's to overwrite.
    b.emit(f"{values}, {where} = {a.name}.{b.rng.choice(('sort', 'cummax'))}(dim=1)")
    b.define(Var(where, a.shape, INDEX, b.new_memory(), high=columns, grad=False))
    b.define(Var(values, a.shape, INTER if a.grad else BUFFER, b.new_memory(), grad=a.grad))
    return f"{values} * {a.name}", a.shape, None


def joined(b: Builder, a: Var) -> Result | None:
    rows, columns = a.shape
    if 2 * rows * columns > LIMIT:
        return None
    same = b.floats(lambda v: v.shape == a.shape)
    other = b.rng.choice(same)
    if b.chance(0.2):
        return f"torch.cat([{a.name}, {b.leaf((0, columns)).name}])", a.shape, None
    if b.chance(0.5):
        return f"torch.cat([{a.name}, {other.name}])", (2 * rows, columns), None
    return f"torch.cat([{a.name}, {other.name}], dim=1)", (rows, 2 * columns), None


def convolution(b: Builder, a: Var) -> Result | None:
    rows, columns = a.shape
    if 0 in a.shape or columns < 2:
        return None
    form = b.rng.randrange(4)
    if form == 0:
        return f"F.max_pool1d({a.name}[None], 2)[0]", (rows, columns // 2), None
    if form == 1:
        return f"F.conv1d({a.name}[:, None], {b.leaf((1, 1, 3)).name}, padding=1)[:, 0]", a.shape, None
    kernel = b.leaf((3, rows, 3))
    return f"F.conv1d({a.name}[None], {kernel.name}, padding=1)[0]", (3, columns), None


def batch_norm(b: Builder, a: Var) -> Result | None:
    rows, columns = a.shape
    if rows < 2:
        return None
    if b.chance(0.3):
        sizes = {"weight": (columns,), "bias": (columns,)}
        name = b.module("bn", f"nn.BatchNorm1d({columns}, dtype=dt){b.rng.choice(('', '.eval()'))}", sizes)
        b.define(Var(f"{name}.running_mean", (columns,), BUFFER, b.new_memory(), grad=False))
        b.define(Var(f"{name}.running_var", (columns,), BUFFER, b.new_memory(), grad=False))
        return f"{name}({a.name})", a.shape, None
    mean, variance = b.fresh("mean"), b.fresh("var")
    b.setup(f"{mean} = torch.zeros({columns}, dtype=dt)")
    b.setup(f"{variance} = torch.ones({columns}, dtype=dt)")
    for name in (mean, variance):
        b.define(Var(name, (columns,), BUFFER, b.new_memory(), grad=False))
    scale, training = b.leaf((columns,)).name, b.chance(0.5)
    text = f"F.batch_norm({a.name}, {mean}, {variance}, {scale}, training={training})"
    return text, a.shape, None


KINDS: tuple[tuple[Callable[[Builder, Var], Result | None], int], ...] = (
    (unary, 30), (binary, 20), (linear, 16), (view, 14), (affine, 8), (indexed, 9), (joined, 5),
    (convolution, 5), (batch_norm, 4),
)  # fmt: skip
_FUNCTIONS = [kind for kind, _ in KINDS]
_WEIGHTS = [weight for _, weight in KINDS]


def operation(b: Builder) -> None:
    """Add one statement that computes a new tensor, most often from a recent one."""
    matrices = b.floats(lambda v: len(v.shape) == 2 and v.shape[0] * v.shape[1] <= LIMIT)
    recent = [v for v in matrices if v.grad and v.role != LEAF][-3:]
    a = b.rng.choice(recent) if recent and b.chance(0.75) else b.rng.choice(matrices)
    result = b.rng.choices(_FUNCTIONS, _WEIGHTS)[0](b, a) or unary(b, a)
    text, shape, viewed = result
    words = set(re.findall(r"\w+", text))
    grad = "detach" not in words and any(v.grad and v.name.split(".")[0] in words for v in b.floats())
    role = viewed.role if viewed else INTER if grad else BUFFER
    memory = viewed.memory if viewed else b.new_memory()
    # A name that's bound again drops the tensor it had, which only the graph keeps then.
    old = b.rebindable()
    name = b.rng.choice(old) if old and b.chance(0.08) else b.fresh("h")
    b.emit(f"{name} = {text}")
    b.variables.pop(name, None)
    b.define(Var(name, shape, role, memory, grad=grad))
