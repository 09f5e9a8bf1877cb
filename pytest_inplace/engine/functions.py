"""Custom Functions: what their authors keep and overwrite without autograd's knowledge."""

from __future__ import annotations

import functools
import inspect
import sys
import types
import weakref
from typing import TYPE_CHECKING, Any

from pytest_inplace.engine import releases, values
from pytest_inplace.engine.gradient_hooks import (
    ActiveLedger,
    ActiveLens,
    State,
    observed,
    plain,
    state,
    suspect_of,
)
from pytest_inplace.engine.held import Held
from pytest_inplace.engine.ledger import Ledger
from pytest_inplace.engine.reach import Named, reads_something, tensors_in
from pytest_inplace.engine.recompute import Rerun
from pytest_inplace.reports import call_sites

if TYPE_CHECKING:
    import torch

_NOT_KEPT = ("saved_for_forward", "to_save", "materialize_grads")
_by_ctx: dict[int, tuple[weakref.ref[Any], Held]] = {}


def patches(active_ledger: ActiveLedger, active_lens: ActiveLens) -> list[tuple[Any, str, Any]]:
    """What to replace, by what: ``(owner, attribute, replacement)``."""
    import torch
    from torch.autograd.function import BackwardCFunction

    original_apply = releases.original_apply()
    original_backward = BackwardCFunction.__dict__["apply"]

    @functools.wraps(original_apply)
    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        ledger = active_ledger()
        if ledger is None or not torch.is_grad_enabled() or torch._C._are_functorch_transforms_active():
            return original_apply(cls, *args, **kwargs)
        inputs: list[torch.Tensor] = []
        before: list[State] = []
        with ledger.guarding("a Function's inputs"), torch._C.DisableTorchFunction():
            inputs = [a for a in args if plain(a) and a.requires_grad]
            before = [state(a) for a in inputs]
        lens = active_lens()
        rerun = None
        if cls.__name__ == "CheckpointFunction" and len(args) > 1 and callable(args[0]):
            if lens is not None:
                given = {"fn": args[0], "args": args[2:], "preserve_rng_state": args[1]}
                lens.outside.checkpoint_begins(given)
            rerun = Rerun(args[0], bool(args[1]), (active_ledger, active_lens))
            args = (rerun.wrapped(), *args[1:])
        if lens is None:
            result = original_apply(cls, *args, **kwargs)
        else:
            result = lens.outside.around_forward(
                inputs, functools.partial(original_apply, cls, *args, **kwargs)
            )
        with ledger.guarding("what a Function keeps"), torch._C.DisableTorchFunction():
            held = _after_forward(ledger, lens, cls, inputs, before, result)
            if rerun is not None:
                rerun.held = held
        return result

    @functools.wraps(original_backward)
    def backward(self: Any, *args: Any) -> Any:
        __tracebackhide__ = True
        ledger = active_ledger()
        if ledger is None:
            return original_backward(self, *args)
        lens, held = active_lens(), held_by(self)
        written = self._forward_cls.backward
        code = getattr(getattr(written, "__wrapped__", written), "__code__", None)
        if held is not None and (lens is None or not lens.on_trial):
            held.used = True
            with ledger.guarding("what a Function keeps"):
                _report_held(ledger, held)
        return observed(ledger, lens, code, args, functools.partial(original_backward, self), held)

    return [
        releases.in_place_of_apply(apply),
        (BackwardCFunction, "apply", backward),
    ]


def _after_forward(
    ledger: Ledger,
    lens: Any,
    cls: Any,
    inputs: list[torch.Tensor],
    before: list[State],
    result: Any,
) -> Held | None:
    where = call_sites.capture(sys._getframe(2))
    outputs = [o for o in (result if isinstance(result, tuple) else (result,)) if plain(o)]
    lane = ledger.lane
    call = lane.calls
    lane.calls += 1
    for i, (tensor, was) in enumerate(zip(inputs, before, strict=True)):
        now = state(tensor)
        # A tensor marked dirty comes back as the very object that went in.
        written = now[1] != was[1] and not values.freed(tensor)
        if written and not any(output is tensor for output in outputs):
            key = ("call", call, i)
            suspect = suspect_of("input", key, tensor, where, was[0])
            suspect.op = f"{cls.__name__}Backward"
            ledger.suspects[key] = suspect
            if lens is not None:
                lens.outside.input_written(key, tensor, sys._getframe(2), where)
    ctx = next((o.grad_fn for o in outputs if type(o.grad_fn) is cls._backward_cls), None)
    if ctx is None:
        return None
    found = _kept_by(ctx, cls)
    kind = "recompute" if cls.__name__ == "CheckpointFunction" else "ctx"
    if not found and kind == "ctx":
        return None
    number = id(ctx)

    def gone(_: Any) -> None:
        _, held = _by_ctx.pop(number, (None, None))
        if held is not None:
            kept.dropped()

    ref = weakref.ref(ctx, gone)
    held = Held(kind, cls.__name__, ledger, where, found, functools.partial(_kept_now, ref, cls))
    kept = OnCtx(held)
    _by_ctx[number] = (ref, held)
    return held


class OnCtx:
    """What a ctx keeps: a latent suspect if it changed and no backward ever asks for it."""

    def __init__(self, held: Held) -> None:
        self._held = held
        held.ledger.kept.add(self)

    @property
    def used(self) -> bool:
        return self._held.used or self._held.kind != "ctx"

    @used.setter
    def used(self, value: bool) -> None:
        self._held.used = value

    def dropped(self) -> None:
        """The ctx dies, or the program ends."""
        ledger = self._held.ledger
        if ledger.closed or self.used:
            return
        with ledger.guarding("what a Function keeps"):
            written = self._held.written_result()
            if written is None:
                return
            self.used = True
            item, tensor = written
            suspect = suspect_of("ctx", self._held.key, tensor, self._held.where, item.version)
            suspect.op = f"{self._held.label}Backward"
            ledger.unused(suspect)


def _kept_by(ctx: Any, cls: Any) -> list[Named]:
    """The tensors on a ctx, and those that its Function's forward and backward both read from elsewhere."""
    kept = {k: v for k, v in vars(ctx).items() if k not in _NOT_KEPT}
    found = [(_attribute_name(name), tensor) for name, tensor in tensors_in(kept, "ctx")] if kept else []
    backward = _read_by(cls, "backward")
    if not backward:
        return found
    seen = {id(tensor) for _, tensor in found}
    forward = {id(tensor) for _, tensor in _read_by(cls, "forward")}
    return found + [(n, tensor) for n, tensor in backward if id(tensor) in forward and id(tensor) not in seen]


def _kept_now(ref: weakref.ref[Any], cls: Any) -> list[Named]:
    ctx = ref()
    return [] if ctx is None else _kept_by(ctx, cls)


def _read_by(cls: Any, method: str) -> list[Named]:
    """The tensors that a method of a Function reads from its closure, from globals and from the class."""
    function = inspect.unwrap(getattr(cls, method))
    if not isinstance(function, types.FunctionType) or call_sites.is_library(function.__code__):
        return []
    named = function.__code__.co_names
    own = {k: v for k, v in vars(cls).items() if k in named and not callable(v)}
    if not own and not reads_something(function):
        return []
    return tensors_in([function, own], cls.__name__)


def _attribute_name(name: str) -> str:
    """``ctx['x'][0]``, as the walk over a ctx's attributes calls it -> ``ctx.x[0]``."""
    if not name.startswith("ctx['"):
        return name
    attribute, _, rest = name.removeprefix("ctx['").partition("']")
    return f"ctx.{attribute}{rest}"


def held_by(ctx: Any) -> Held | None:
    """What a ctx of a Function that was applied while a program was watched keeps."""
    entry = _by_ctx.get(id(ctx))
    return entry[1] if entry is not None and entry[0]() is ctx else None


def _report_held(ledger: Ledger, held: Held) -> None:
    changed = held.changed() if held.ledger is ledger else []
    held.reach = None  # what backward itself puts on its ctx is no exchange
    for item, tensor in changed:
        if held.key in ledger.suspects:
            continue
        suspect = suspect_of(held.kind, held.key, tensor, held.where, item.version)
        suspect.used = call_sites.capture(sys._getframe(2))
        suspect.op = f"{held.label}Backward"
        ledger.suspects[held.key] = suspect
