"""Statements that overwrite a tensor of the program, in every way there is."""

from __future__ import annotations

from .model import BUFFER, INDEX, INTER, JOINED, LEAF, MASK, Builder, Var

# In-place operations that keep values tame. Most change every element.
METHODS = (
    "mul_(1.5)", "add_(0.25)", "sub_(0.5)", "zero_()", "neg_()", "clamp_(min=-0.1)", "relu_()", "tanh_()",
    "sigmoid_()", "sin_()", "fill_(0.75)", "div_(2.0)", "abs_()", "square_()", "copy_({k})", "mul_({k})",
    "lerp_({k}, 0.5)",
)  # fmt: skip
UNCHANGED = ("mul_(1)", "add_(0)", "copy_({t}.detach().clone())", "div_(1.0)")

GRAPH = "in the graph"
NO_GRAD = "under no_grad"
SILENT = "silent"
SWAP = "storage swap"
SAME = "same values"
RESTORE = "restored"
APART = "apart"
DETACH = "detach_"
CALL = "library call"
KINDS = (
    (GRAPH, 15), (NO_GRAD, 9), (SILENT, 66), (SWAP, 7), (SAME, 6), (RESTORE, 6), (APART, 8),
    (DETACH, 1), (CALL, 4),
)  # fmt: skip


def places(target: Var) -> list[str]:
    """Expressions for the tensor and for parts of it."""
    if not target.shape or 0 in target.shape:
        return ["{t}"]
    found = ["{t}", "{t}", "{t}[0]", "{t}[::2]", "{t}[..., :1]"]
    if len(target.shape) == 2:
        found += ["{t}.t()", "{t}[:, ::2]", "{t}.view_as({t})"]
        if target.shape[1] > 1:
            found += ["{t}[:, 1:]", "{t}[0, 1]"]
    return found


def pick(b: Builder, roles: tuple[str, ...] | None = None) -> Var | None:
    """A tensor to overwrite, intermediates most often."""
    wanted = roles or (b.rng.choices((INTER, LEAF, BUFFER, INDEX, MASK), (62, 18, 11, 5, 4))[0],)
    found = [v for v in b.variables.values() if v.role in wanted]
    return b.rng.choice(found) if found else None


def write(b: Builder, roles: tuple[str, ...] | None = None) -> Var | None:
    """Add a write and say which tensor it goes to."""
    target = pick(b, roles)
    if target is None:
        return None
    b.written = target.role
    if target.role in (INDEX, MASK):
        _integers(b, target)
        return target
    kind = b.rng.choices([k for k, _ in KINDS], [w for _, w in KINDS])[0]
    if kind == GRAPH and target.role == LEAF and not b.chance(0.1):
        kind = NO_GRAD  # the rest shows PyTorch's refusal, which needs no large sample
    if kind == DETACH and target.role != INTER:
        kind = SILENT
    if kind == APART:
        return _apart(b, target)
    _WRITERS[kind](b, target)
    return target


def _operand(b: Builder, place: str, target: Var) -> str:
    """Another tensor of the same shape, or part of one, to copy from."""
    same = b.floats(lambda v: v.shape == target.shape and v.memory != target.memory)
    return place.format(t=b.rng.choice(same).name) if same else "0.5"


def _method(b: Builder, place: str, target: Var, *, detached: bool) -> str:
    method = b.rng.choice(METHODS)
    operand = _operand(b, place, target)
    if "{k}" in method and operand == "0.5":
        method = "mul_(0.5)"
    return method.format(k=operand + (".detach()" if detached else ""))


def _graph(b: Builder, target: Var) -> None:
    if target.role == BUFFER:
        b.written = JOINED
    place = b.rng.choice(places(target))
    where = place.format(t=target.name)
    if b.chance(0.5):
        b.emit(f"{where}.{_method(b, place, target, detached=False)}", write=True)
    elif where == target.name:
        b.emit(f"{where} {b.rng.choice(('+=', '*=', '-='))} {b.rng.choice(('0.5', '1.25'))}", write=True)
    elif where.endswith("]"):
        value = b.rng.choice(("0.0", "1.0", f"{where} * 2", _operand(b, place, target)))
        b.emit(f"{where} = {value}", write=True)
    else:
        b.emit(f"{where}.mul_(2.0)", write=True)


def _no_grad(b: Builder, target: Var) -> None:
    place, t = b.rng.choice(places(target)), target.name
    where = place.format(t=t)
    forms = [f"{where}.{_method(b, place, target, detached=True)}"] * 4
    forms += [f"torch.add({where}, 0.5, out={where})", f"torch.mul({where}, 2.0, out={where})"]
    forms += [f"torch._foreach_mul_([{where}], 0.5)", f"{t} *= 0.9", f"torch.neg({t}, out={t})"]
    text = b.rng.choice(forms)
    if b.chance(0.2):
        # Not under no_grad, but with the same effect: a detached alias shares the version counter.
        b.emit(f"{place.format(t=t + '.detach()')}.{_method(b, place, target, detached=True)}", write=True)
    else:
        b.emit(f"with torch.no_grad(): {text}", write=True)


def _silent(b: Builder, target: Var) -> None:
    place, t = b.rng.choice(places(target)), target.name
    data = place.format(t=f"{t}.data")
    array = f"{t}.detach().numpy()"
    forms = [f"{data}.{_method(b, place, target, detached=True)}"] * 5
    forms += [f"{array}[...] = 0.25", f"np.multiply({array}, 1.5, out={array})", f"{array}.fill(0.5)"]
    forms += [f"torch.from_dlpack({t}.detach()).add_(0.5)", f"torch.from_numpy({array}).neg_()"]
    forms += [f"np.copyto({array}, {array}[::-1].copy())", f"{t}.data.copy_({t}.data * 0.5)"]
    forms += [f"torch._foreach_add_([{t}.data], 0.5)", f"torch.sin({t}.data, out={t}.data)"]
    b.emit(b.rng.choice(forms), write=True)


def _swap(b: Builder, target: Var) -> None:
    value = b.rng.choice(
        ("{t}.detach() * 1.5", "{t}.detach() + 0.25", "torch.ones_like({t})", "{t}.detach().clone()")
    )
    b.emit(f"{target.name}.data = {value.format(t=target.name)}", write=True)


def _same(b: Builder, target: Var) -> None:
    base = b.rng.choice((f"{target.name}.data", f"{target.name}.data", f"{target.name}.detach()"))
    b.emit(f"{base}.{b.rng.choice(UNCHANGED).format(t=target.name)}", write=True)


def _restore(b: Builder, target: Var) -> None:
    kept = b.fresh("kept")
    b.emit(f"{kept} = {target.name}.detach().clone()")
    b.emit(f"{target.name}.data.{b.rng.choice(('mul_(1.5)', 'zero_()', 'neg_()'))}", write=True)
    b.emit(f"{target.name}.data.copy_({kept})", write=True)


def _apart(b: Builder, target: Var) -> Var:
    """Memory that nothing saved: a tensor of its own, or the other part of a saved view's base."""
    if b.chance(0.4) or len(target.shape) != 2 or target.shape[1] < 2:
        name = b.fresh("unused")
        b.emit(f"{name} = {target.name}.detach().clone()")
        b.emit(f"{name}.{b.rng.choice(('mul_(2.0)', 'zero_()', 'add_(1.0)'))}", write=True)
        return target
    view, saved = b.fresh("part"), b.fresh("h")
    b.emit(f"{view} = {target.name}[:, :1]")
    b.emit(f"{saved} = {view} * {view}")
    b.define(Var(saved, (target.shape[0], 1), INTER, b.new_memory(), grad=target.grad))
    rest = b.rng.choice((f"{target.name}.data[:, 1:]", f"{target.name}.detach()[:, 1:]"))
    b.emit(f"{rest}.{b.rng.choice(('mul_(2.0)', 'zero_()', 'add_(1.0)'))}", write=True)
    return target


def _detach(b: Builder, target: Var) -> None:
    b.emit(f"{target.name}.detach_()", write=True)


def _call(b: Builder, target: Var) -> None:
    """Functions that write to their argument."""
    t = target.name
    forms = [f"nn.init.constant_({t}, 0.5)", f"nn.init.zeros_({t})", f"F.relu({t}.data, inplace=True)"]
    forms += [f"nn.init.eye_({t})"] if len(target.shape) == 2 else []
    b.emit(b.rng.choice(forms), write=True)


def _integers(b: Builder, target: Var) -> None:
    """Other values that are valid indices too: an index out of bounds may end the process."""
    t = target.name
    if target.role == MASK:
        forms = [
            f"{t}.logical_not_()",
            f"{t}.fill_(True)",
            f"{t}.numpy()[...] = False",
            f"{t}.data.logical_not_()",
        ]
    else:
        last = target.high - 1
        forms = [
            f"{t}.zero_()",
            f"{t}.copy_({last} - {t})",
            f"{t}.numpy()[...] = {last}",
            f"{t}.data.fill_({last})",
        ]
        forms += [
            f"{t}.add_(1).remainder_({target.high})",
            f"np.subtract({last}, {t}.numpy(), out={t}.numpy())",
        ]
    b.emit(b.rng.choice(forms), write=True)


_WRITERS = {
    GRAPH: _graph, NO_GRAD: _no_grad, SILENT: _silent, SWAP: _swap, SAME: _same, RESTORE: _restore,
    DETACH: _detach, CALL: _call,
}  # fmt: skip
