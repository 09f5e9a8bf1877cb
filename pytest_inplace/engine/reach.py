"""The tensors that can be reached from a value: through containers, objects, closures, arrays and storages.

Nothing of the user's is called on the way: where an object has neither items nor attributes to read past
its own access, the garbage collector tells what it refers to.
"""

from __future__ import annotations

import collections
import contextlib
import functools
import gc
import itertools
import logging
import sys
import types
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pytest_inplace.engine import values
from pytest_inplace.engine.quiet import quiet
from pytest_inplace.reports import call_sites

if TYPE_CHECKING:
    import torch

_MAX_DEPTH = 8
_MAX_TENSORS = 2000
_MAX_VISITS = 5000
_OF_MEMORY = "_inplace_of_memory"
WRAPS = "_inplace_wraps"
"""The attribute of a function of ours that stands in for one of the user's: that one."""
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
_OPAQUE = (
    bytes, type, types.ModuleType, types.CodeType, types.FrameType,
    types.TracebackType, logging.Logger, BaseException,
)  # fmt: skip

_PLAIN = (bool, int, float, complex, str, type(None))
_CONTAINERS = frozenset({dict, list, tuple, set, frozenset, collections.deque})
_slots: dict[type, list[tuple[str, Any]]] = {}

Named = tuple[str, "torch.Tensor"]


def tensors_in(value: Any, name: str) -> list[Named]:
    """The tensors reachable from ``value``, which is called ``name``, each with the way to it."""
    return list(itertools.islice(_Walk().over(value, name, 0), _MAX_TENSORS))


def settings_in(value: Any, name: str) -> dict[str, Any]:
    """The numbers, texts and flags reachable from ``value``, by the way to each."""
    walk = _Walk(settings={})
    collections.deque(itertools.islice(walk.over(value, name, 0), _MAX_TENSORS), maxlen=0)
    return walk.settings or {}


def is_alias(tensor: torch.Tensor) -> bool:
    """Whether it was made here to look at an array or a storage, so that nobody else keeps it."""
    return hasattr(tensor, _OF_MEMORY)


class _Walk:
    """One walk: what it has seen, so that cycles end, and how much, so that it ends soon.

    ``settings`` collects the plain values that it meets, where they are wanted.
    """

    def __init__(self, settings: dict[str, Any] | None = None) -> None:
        self.settings = settings
        self._seen: set[int] = set()
        self._visits = 0

    def over(self, value: Any, name: str, depth: int) -> Iterator[Named]:
        import torch

        if isinstance(value, _PLAIN):
            if self.settings is not None:
                self.settings.setdefault(name, value)
            return
        if isinstance(value, _OPAQUE) or id(value) in self._seen:
            return
        self._visits += 1
        if depth > _MAX_DEPTH or self._visits > _MAX_VISITS:
            return
        self._seen.add(id(value))
        if isinstance(value, torch.Tensor):
            if type(value) in values.plain_types():
                yield name, _unwrapped(value)
        elif type(value) not in _CONTAINERS and isinstance(value, torch.nn.Module):
            yield from self._module(value, name)
        elif _is_memory(value):
            alias = _alias_of(value)
            if alias is not None:
                yield name, alias
        elif type(value) in _CONTAINERS or not isinstance(value, torch.autograd.graph.Node):
            for part_name, part in self._parts(value, name):
                yield from self.over(part, part_name, depth + 1)

    def _parts(self, value: Any, name: str) -> Iterator[tuple[str, Any]]:
        if isinstance(value, types.FunctionType) and hasattr(value, WRAPS):
            yield name, getattr(value, WRAPS)
            return
        if isinstance(value, types.FunctionType):
            yield from _function(value, name)
            return
        if isinstance(value, types.MethodType | types.BuiltinMethodType | types.MethodWrapperType):
            yield name, value.__self__
            yield name, getattr(value, "__func__", None)
            return
        if isinstance(value, functools.partial):
            yield from ((name, part) for part in (value.func, value.args, value.keywords))
            return
        if isinstance(value, weakref.ref):
            yield name, value()
            return
        if isinstance(value, memoryview):
            yield name, value.obj
            return
        if isinstance(value, dict):
            yield from ((f"{name}[{key!r}]", item) for key, item in list(dict.items(value)))
        elif isinstance(value, list | tuple | collections.deque):
            yield from ((f"{name}[{i}]", item) for i, item in enumerate(list(type_of(value).__iter__(value))))
        if type(value) in (dict, list, tuple, collections.deque):
            return
        if type(value) not in _CONTAINERS:
            yield from _attributes(value, name)
        yield from ((name, part) for part in gc.get_referents(value))

    def _module(self, module: torch.nn.Module, name: str) -> Iterator[Named]:
        """Parameters, buffers and plain attributes, not the statistics that a layer updates as it runs."""
        import torch

        for path, each in module.named_modules():
            prefix = f"{name}.{path}" if path else name
            own = [*each._parameters.items(), *each._buffers.items()]
            own += [(k, v) for k, v in vars(each).items() if isinstance(v, torch.Tensor)]
            for key, tensor in own:
                if tensor is None or id(tensor) in self._seen or (key in _STATISTICS and each.training):
                    continue
                self._seen.add(id(tensor))
                if type(tensor) in values.plain_types():
                    yield f"{prefix}.{key}", tensor
            if self.settings is not None:
                self.settings.update(
                    {
                        f"{prefix}.{k}": v
                        for k, v in vars(each).items()
                        if isinstance(v, _PLAIN) and k[0] != "_"
                    }
                )


def _unwrapped(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor inside what ``torch.vmap`` and the like wrap it in, which has no memory of its own."""
    import torch

    functorch: Any = torch._C._functorch
    while functorch.is_functorch_wrapped_tensor(tensor):
        tensor = functorch.get_unwrapped(tensor)
    return tensor


def type_of(value: Any) -> Any:
    """The built-in container class that ``value`` is of, whose own iteration runs no code of the user's."""
    return next(kind for kind in (list, tuple, collections.deque) if isinstance(value, kind))


def _attributes(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Instance attributes, in a dictionary and in slots, read past the object's own attribute access."""
    with contextlib.suppress(AttributeError):
        for key, item in list(object.__getattribute__(value, "__dict__").items()):
            yield f"{name}.{key}", item
    for key, slot in _slots_of(type(value)):
        with contextlib.suppress(AttributeError):
            yield f"{name}.{key}", slot.__get__(value)


def _slots_of(kind: type) -> list[tuple[str, Any]]:
    found = _slots.get(kind)
    if found is None:
        members = [each for owner in kind.__mro__ for each in vars(owner).items()]
        found = [(key, m) for key, m in members if isinstance(m, types.MemberDescriptorType)]
        _slots[kind] = found
    return found


def _function(function: types.FunctionType, name: str) -> Iterator[tuple[str, Any]]:
    """What a function reads that is not its argument: free variables, defaults and globals."""
    for variable, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # not assigned yet
            yield variable, cell.cell_contents
    for default in function.__defaults__ or ():
        yield name, default
    yield from (function.__kwdefaults__ or {}).items()
    named = function.__code__.co_names
    for variable in named:
        held = function.__globals__.get(variable)
        if _followed(held):
            yield variable, held
        elif isinstance(held, type):
            own = {name: value for name, value in vars(held).items() if name in named}
            yield from ((f"{variable}.{key}", value) for key, value in own.items() if _followed(value))


def _followed(held: Any, plain: bool = True) -> bool:
    """Whether a global is data, or a function of the user's that may read more of it."""
    import torch

    if isinstance(held, _PLAIN):
        return plain and held is not None
    if isinstance(held, types.FunctionType):
        return not call_sites.is_library(held.__code__)
    return isinstance(held, torch.Tensor | torch.nn.Module | dict | list) or _is_array(held)


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.ndarray)


def _is_memory(value: Any) -> bool:
    import torch

    return _is_array(value) or isinstance(value, torch.UntypedStorage)


def _alias_of(value: Any) -> torch.Tensor | None:
    """A tensor over the memory of a NumPy array or a storage, where there is one for its kind."""
    import torch

    with contextlib.suppress(TypeError, ValueError, RuntimeError, AttributeError), quiet():
        if isinstance(value, torch.UntypedStorage):
            if value.device.type != "cpu":
                return None
            alias = torch.empty(0, dtype=torch.uint8).set_(value)
        else:
            while not value.flags.writeable:  # for which PyTorch warns; what it is a view of may be
                value = value.base
            alias = torch.from_numpy(value)
        setattr(alias, _OF_MEMORY, True)
        return alias
    return None


def reads_something(function: types.FunctionType) -> bool:
    """Whether a function may read tensors that are not its arguments."""
    if function.__closure__ or function.__defaults__ or function.__kwdefaults__:
        return True
    names, known = function.__code__.co_names, function.__globals__
    return any(
        isinstance(held := known.get(n), type) or (held is not None and _followed(held, plain=False))
        for n in names
    )
