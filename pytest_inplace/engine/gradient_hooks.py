"""Gradients that the user's code is given: a backward, a hook on a tensor or a module, after accumulation.

Whoever overwrites such a gradient in place overwrites it for all that share it, which autograd does not see.
"""

from __future__ import annotations

import copy
import functools
import itertools
import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from pytest_inplace.engine import values
from pytest_inplace.engine.held import Held
from pytest_inplace.engine.ledger import Ledger, Suspect
from pytest_inplace.reports import call_sites

if TYPE_CHECKING:
    import torch

State = tuple[int, "int | None"]
ActiveLedger = Callable[[], "Ledger | None"]
ActiveLens = Callable[[], Any]


def state(tensor: torch.Tensor) -> State:
    """Version and digest: enough to tell whether the tensor was written in between."""
    return tensor._version, values.digest(tensor)


def plain(value: Any) -> bool:
    """Whether it is a tensor that we can look at without running anybody's code."""
    return type(value) in values.plain_types()


def suspect_of(kind: str, key: Any, tensor: torch.Tensor, where: Any, version: int) -> Suspect:
    """A suspect that autograd did not save."""
    return Suspect(
        None,
        where,
        None,
        None,
        values.is_leaf(tensor) and tensor.requires_grad,
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
    given = [g for g in grads if plain(g)]
    before: list[State] = []
    with ledger.guarding("gradients"):
        before = [state(g) for g in given]
    result = call(*grads) if lens is None else lens.outside.around_backward(key, given, call, grads)
    with ledger.guarding("gradients"):
        for gradient, was in zip(given, before, strict=True):
            if state(gradient) != was and not values.freed(gradient):
                suspect = suspect_of("grad", key, gradient, None, was[0])
                suspect.used = call_sites.capture(sys._getframe(2))
                ledger.suspects.setdefault(key, suspect)
    return result


def _unbound(hook: Any) -> Any:
    while isinstance(hook, functools.partial):
        hook = hook.func
    return hook


class WatchedHook:
    """A user's hook on gradients, observed while a test is watched. Copied or pickled it is theirs again."""

    def __init__(self, hook: Any, active_ledger: ActiveLedger, active_lens: ActiveLens) -> None:
        self._hook = hook
        self._active_ledger = active_ledger
        self._active_lens = active_lens
        functools.update_wrapper(self, hook, updated=())

    def __reduce__(self) -> Any:
        return copy.copy, (self._hook,)

    def __call__(self, *args: Any) -> Any:
        __tracebackhide__ = True
        ledger = self._active_ledger()
        if ledger is None:
            return self._hook(*args)
        return self._observed(ledger, self._active_lens(), args)

    @property
    def _code(self) -> Any:
        """What a second run has again: of an object that can be called, the code of its class."""
        hook = _unbound(self._hook)
        call = getattr(type(hook), "__call__", None)  # noqa: B004 - its code, not whether there is one
        return getattr(hook, "__code__", None) or getattr(call, "__code__", hook)

    def _observed(self, ledger: Ledger, lens: Any, args: tuple[Any, ...]) -> Any:
        __tracebackhide__ = True
        return observed(ledger, lens, self._code, args, self._hook, passed_on=lambda own: own[0])


def _with_groups(
    hook: Callable[..., Any], code: Any, ledger: Ledger, lens: Any, groups: Sequence[tuple[Any, ...]]
) -> Any:
    """Call a hook that takes tuples of gradients."""
    __tracebackhide__ = True
    ends = list(itertools.accumulate(len(group) for group in groups))

    def call(*grads: Any) -> Any:
        __tracebackhide__ = True
        return hook(*(grads[start:end] for start, end in zip([0, *ends], ends, strict=False)))

    grads = tuple(itertools.chain(*groups))
    return observed(ledger, lens, code, grads, call, passed_on=lambda own: own[: ends[0]])


class WatchedModuleHook(WatchedHook):
    """A hook that is given a module and one or two tuples of gradients, and may return the first anew."""

    def _observed(self, ledger: Ledger, lens: Any, args: tuple[Any, ...]) -> Any:
        __tracebackhide__ = True
        module, *groups = args
        return _with_groups(functools.partial(self._hook, module), self._code, ledger, lens, groups)


class WatchedNodeHook(WatchedHook):
    """A hook on a node: it is given a tuple of gradients, or two, and may return the first anew."""

    def _observed(self, ledger: Ledger, lens: Any, args: tuple[Any, ...]) -> Any:
        __tracebackhide__ = True
        return _with_groups(self._hook, self._code, ledger, lens, args)


class WatchedAccumulation(WatchedHook):
    """A hook that is called with a leaf whose ``.grad`` is complete."""

    def _observed(self, ledger: Ledger, lens: Any, args: tuple[Any, ...]) -> Any:
        __tracebackhide__ = True
        (leaf,) = args
        gradient = leaf.grad
        if not plain(gradient):
            return self._hook(leaf)

        def call(*_: Any) -> Any:
            __tracebackhide__ = True
            return self._hook(leaf)

        return observed(ledger, lens, self._code, (gradient,), call, accumulated=leaf)


class WatchedGroupHook(WatchedHook):
    """A hook that is given the gradients of several tensors when the last of them is there.

    That last one is the business of the hook by which torch waits for it; the others may be in use elsewhere.
    """

    def _observed(self, ledger: Ledger, lens: Any, args: tuple[Any, ...]) -> Any:
        __tracebackhide__ = True
        (group,) = args
        if not isinstance(group, list):
            return self._hook(group)
        last = sys._getframe(2).f_locals.get("grad")
        others = [i for i, gradient in enumerate(group) if gradient is not None and gradient is not last]

        def call(*grads: Any) -> Any:
            __tracebackhide__ = True
            whole = list(group)
            for i, gradient in zip(others, grads, strict=True):
                whole[i] = gradient
            return self._hook(whole)

        return observed(ledger, lens, self._code, tuple(group[i] for i in others), call)


def _is_the_users(hook: Any) -> bool:
    """Not what torch, or we, registered: that calls what is the user's, which is watched already."""
    module = getattr(_unbound(hook), "__module__", None) or ""
    return module.partition(".")[0] not in ("torch", "pytest_inplace")


def patches(active_ledger: ActiveLedger, active_lens: ActiveLens) -> list[tuple[Any, str, Any]]:
    """What to replace, by what: ``(owner, attribute, replacement)``."""
    import torch

    def watching(owner: Any, name: str, kind: type[WatchedHook], position: int) -> tuple[Any, str, Any]:
        original = getattr(owner, name)

        @functools.wraps(original)
        def register(*args: Any, **kwargs: Any) -> Any:
            if active_ledger() is not None:
                # The hook is the argument at this position, or the one of that name.
                given = list(args)
                if len(given) > position and callable(given[position]):
                    given[position] = kind(given[position], active_ledger, active_lens)
                elif callable(kwargs.get("hook")):
                    kwargs["hook"] = kind(kwargs["hook"], active_ledger, active_lens)
                args = tuple(given)
            return original(*args, **kwargs)

        return owner, name, register

    # The hooks of all nodes are registered here, by C++: their own methods cannot be replaced.
    nodes: Any = torch.autograd.function._HookMixin
    on_node = nodes._register_hook

    @functools.wraps(on_node)
    def register_on_node(hooks: Any, hook: Any) -> Any:
        if active_ledger() is not None and callable(hook) and _is_the_users(hook):
            hook = WatchedNodeHook(hook, active_ledger, active_lens)
        return on_node(hooks, hook)

    module, every = torch.nn.Module, torch.nn.modules.module
    return [
        (nodes, "_register_hook", staticmethod(register_on_node)),
        watching(torch.Tensor, "register_hook", WatchedHook, 1),
        watching(torch.Tensor, "register_post_accumulate_grad_hook", WatchedAccumulation, 1),
        watching(torch.autograd.graph, "register_multi_grad_hook", WatchedGroupHook, 1),
        watching(module, "register_full_backward_hook", WatchedModuleHook, 1),
        watching(module, "register_full_backward_pre_hook", WatchedModuleHook, 1),
        watching(every, "register_module_full_backward_hook", WatchedModuleHook, 0),
        watching(every, "register_module_full_backward_pre_hook", WatchedModuleHook, 0),
    ]
