"""Custom Functions and gradient hooks: what their authors keep and overwrite without autograd's knowledge."""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytest_inplace import call_sites, values
from pytest_inplace.held import Held, tensors_in
from pytest_inplace.ledger import Ledger, Suspect

if TYPE_CHECKING:
    import torch

State = tuple[int, "int | None"]
ActiveLedger = Callable[[], "Ledger | None"]
ActiveLens = Callable[[], Any]

_NOT_KEPT = ("saved_for_forward", "to_save", "materialize_grads")
_by_ctx: dict[int, tuple[weakref.ref[Any], Held]] = {}


def state(tensor: torch.Tensor) -> State:
    """Version and digest: enough to tell whether the tensor was written in between."""
    return tensor._version, values.digest(tensor)


def patches(active_ledger: ActiveLedger, active_lens: ActiveLens) -> list[tuple[Any, str, Any]]:
    """What to replace, by what: ``(owner, attribute, replacement)``."""
    import torch
    from torch.autograd.function import BackwardCFunction, Function

    original_apply = Function.__dict__["apply"].__func__
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
            inputs = [a for a in args if _plain(a) and a.requires_grad]
            before = [state(a) for a in inputs]
        lens = active_lens()
        if lens is None:
            result = original_apply(cls, *args, **kwargs)
        else:
            result = lens.outside.around_forward(
                inputs, functools.partial(original_apply, cls, *args, **kwargs)
            )
        with ledger.guarding("what a Function keeps"), torch._C.DisableTorchFunction():
            _after_forward(ledger, lens, cls, inputs, before, result)
        return result

    @functools.wraps(original_backward)
    def backward(self: Any, *args: Any) -> Any:
        __tracebackhide__ = True
        ledger = active_ledger()
        if ledger is None:
            return original_backward(self, *args)
        lens, held = active_lens(), _held_by(self)
        written = self._forward_cls.backward
        code = getattr(getattr(written, "__wrapped__", written), "__code__", None)
        if held is not None and (lens is None or not lens.on_trial):
            with ledger.guarding("what a Function keeps"):
                _report_held(ledger, held)
        return observed(ledger, lens, code, args, functools.partial(original_backward, self), held)

    return [
        (Function, "apply", classmethod(apply)),
        (BackwardCFunction, "apply", backward),
        *_hook_patches(active_ledger, active_lens),
    ]


def _plain(value: Any) -> bool:
    return type(value) in values.plain_types()


def _after_forward(
    ledger: Ledger, lens: Any, cls: Any, inputs: list[torch.Tensor], before: list[State], result: Any
) -> None:
    where = call_sites.capture(sys._getframe(2))
    outputs = [o for o in (result if isinstance(result, tuple) else (result,)) if _plain(o)]
    call = ledger.calls
    ledger.calls += 1
    for i, (tensor, was) in enumerate(zip(inputs, before, strict=True)):
        now = state(tensor)
        # A tensor marked dirty comes back as the very object that went in.
        if now[1] != was[1] and not any(output is tensor for output in outputs):
            key = ("call", call, i)
            suspect = _suspect("input", key, tensor, where, was[0])
            suspect.op = f"{cls.__name__}Backward"
            ledger.suspects[key] = suspect
            if lens is not None:
                lens.outside.input_written(key, tensor, sys._getframe(2))
    ctx = next((o.grad_fn for o in outputs if type(o.grad_fn) is cls._backward_cls), None)
    if ctx is None:
        return
    kept = {k: v for k, v in vars(ctx).items() if k not in _NOT_KEPT}
    found = tensors_in(kept, "ctx")
    if found:
        kind = "recompute" if cls.__name__ == "CheckpointFunction" else "ctx"
        named = [(_attribute_name(name), tensor) for name, tensor in found]
        held = Held(kind, cls.__name__, ledger, where, named)
        number = id(ctx)
        _by_ctx[number] = (weakref.ref(ctx, lambda _: _by_ctx.pop(number, None)), held)


def _attribute_name(name: str) -> str:
    """``ctx['x'][0]``, as the walk over a ctx's attributes calls it -> ``ctx.x[0]``."""
    if not name.startswith("ctx['"):
        return name
    attribute, _, rest = name.removeprefix("ctx['").partition("']")
    return f"ctx.{attribute}{rest}"


def _held_by(ctx: Any) -> Held | None:
    entry = _by_ctx.get(id(ctx))
    return entry[1] if entry is not None and entry[0]() is ctx else None


def _report_held(ledger: Ledger, held: Held) -> None:
    for item in held.changed():
        tensor = item.ref()
        if tensor is None or held.ledger is not ledger or held.key in ledger.suspects:
            continue
        suspect = _suspect(held.kind, held.key, tensor, held.where, item.version)
        suspect.used = call_sites.capture(sys._getframe(2))
        suspect.op = f"{held.label}Backward"
        ledger.suspects[held.key] = suspect


def _suspect(kind: str, key: Any, tensor: torch.Tensor, where: Any, version: int) -> Suspect:
    return Suspect(
        None,
        where,
        None,
        None,
        tensor.is_leaf and tensor.requires_grad,
        tuple(tensor.shape),
        values.dtype_name(tensor),
        str(tensor.device),
        version,
        tensor._version,
        kind=kind,
        key=key,
    )


def observed(
    ledger: Ledger,
    lens: Any,
    code: Any,
    grads: tuple[Any, ...],
    call: Callable[..., Any],
    held: Held | None = None,
    passed_on: Callable[[Any], Any] | None = None,
    accumulated: torch.Tensor | None = None,
) -> Any:
    """Call user code with gradients, and note whether it wrote into them.

    Where the code returns nothing, ``passed_on`` picks what goes on in the backward pass from what it was
    given, with what it wrote there.
    ``accumulated`` is the leaf whose ``.grad`` the code is about.
    """
    __tracebackhide__ = True
    key = ("grad", code) if accumulated is None else ("grad", code, "accumulated")
    if lens is not None and lens.on_trial:
        if accumulated is not None:
            return lens.outside.on_trial_accumulated(key, accumulated, call)
        return lens.outside.on_trial_backward(key, grads, call, held, passed_on)
    given = [g for g in grads if _plain(g)]
    before: list[State] = []
    with ledger.guarding("gradients"):
        before = [state(g) for g in given]
    result = call(*grads) if lens is None else lens.outside.around_backward(key, given, call, grads)
    with ledger.guarding("gradients"):
        for gradient, was in zip(given, before, strict=True):
            if state(gradient) != was:
                suspect = _suspect("grad", key, gradient, None, was[0])
                suspect.used = call_sites.capture(sys._getframe(2))
                ledger.suspects.setdefault(key, suspect)
    return result


def _without_gradient(hook: Any, leaf: Any, *_: Any) -> Any:
    return hook(leaf)


def _hook_patches(active_ledger: ActiveLedger, active_lens: ActiveLens) -> list[tuple[Any, str, Any]]:
    import torch

    register: Any = torch.Tensor.register_hook
    module_register = torch.nn.Module.register_full_backward_hook

    def wrapped(hook: Any) -> Any:
        @functools.wraps(hook, updated=())
        def watched(grad: Any) -> Any:
            __tracebackhide__ = True
            ledger = active_ledger()
            if ledger is None:
                return hook(grad)
            return observed(
                ledger,
                active_lens(),
                getattr(hook, "__code__", hook),
                (grad,),
                hook,
                passed_on=lambda own: own[0],
            )

        return watched

    @functools.wraps(register)
    def register_hook(self: Any, hook: Any) -> Any:
        return register(self, wrapped(hook) if callable(hook) and active_ledger() is not None else hook)

    @functools.wraps(module_register)
    def register_full_backward_hook(self: Any, hook: Any, *args: Any, **kwargs: Any) -> Any:
        if not callable(hook) or active_ledger() is None:
            return module_register(self, hook, *args, **kwargs)

        @functools.wraps(hook, updated=())
        def watched(module: Any, grad_input: Any, grad_output: Any) -> Any:
            __tracebackhide__ = True
            ledger = active_ledger()
            if ledger is None:
                return hook(module, grad_input, grad_output)
            split = len(grad_input)

            def call(*grads: Any) -> Any:
                return hook(module, grads[:split], grads[split:])

            code = getattr(hook, "__code__", hook)
            return observed(
                ledger,
                active_lens(),
                code,
                (*grad_input, *grad_output),
                call,
                passed_on=lambda own: own[:split],
            )

        return module_register(self, watched, *args, **kwargs)

    after_accumulation: Any = torch.Tensor.register_post_accumulate_grad_hook

    @functools.wraps(after_accumulation)
    def register_post_accumulate_grad_hook(self: Any, hook: Any) -> Any:
        if not callable(hook) or active_ledger() is None:
            return after_accumulation(self, hook)

        @functools.wraps(hook, updated=())
        def watched(leaf: Any) -> Any:
            __tracebackhide__ = True
            ledger, gradient = active_ledger(), leaf.grad
            if ledger is None or not _plain(gradient):
                return hook(leaf)
            code = getattr(hook, "__code__", hook)
            call = functools.partial(_without_gradient, hook, leaf)
            return observed(ledger, active_lens(), code, (gradient,), call, accumulated=leaf)

        return after_accumulation(self, watched)

    return [
        (torch.Tensor, "register_hook", register_hook),
        (torch.Tensor, "register_post_accumulate_grad_hook", register_post_accumulate_grad_hook),
        (torch.nn.Module, "register_full_backward_hook", register_full_backward_hook),
    ]
