"""Tensors that somebody keeps until backward outside autograd's saved variables, where no version is checked.

A custom Function keeps them on its ctx, a user's saved-tensor hooks in what they return from pack, a
checkpoint in the function and the arguments that it will call again.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import types
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from pytest_inplace.engine import values
from pytest_inplace.engine.ledger import Ledger
from pytest_inplace.engine.quiet import quiet
from pytest_inplace.engine.references import TensorRef
from pytest_inplace.reports.call_sites import Capture

if TYPE_CHECKING:
    import torch

_MAX_DEPTH = 4
_MAX_TENSORS = 2000
_OF_ARRAY = "_inplace_of_array"
_STATISTICS = ("running_mean", "running_var", "num_batches_tracked")


class HeldTensor:
    """One kept tensor: where it is kept, and its version and content when it was put there."""

    __slots__ = ("_alias", "digest", "name", "ref", "version")

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        self.name = name
        self.ref = TensorRef(tensor)
        # Of an array the tensor is only our way to look at its memory, so nobody else keeps it.
        self._alias = tensor if hasattr(tensor, _OF_ARRAY) else None
        self.version = tensor._version
        self.digest = values.digest(tensor)

    def changed(self) -> torch.Tensor | None:
        """The tensor, if it is alive and its content is not what it was."""
        tensor = self.ref()
        if tensor is None or (self.digest is None and tensor._version == self.version):
            return None
        return tensor if self.digest is None or values.digest(tensor) != self.digest else None


class Held:
    """The tensors that one ctx, packed value or checkpoint keeps; ``kind`` says which of these."""

    __slots__ = ("__weakref__", "kind", "label", "ledger", "ordinal", "tensors", "where")

    def __init__(
        self,
        kind: str,
        label: str,
        ledger: Ledger,
        where: Capture | None,
        found: list[tuple[str, torch.Tensor]],
    ) -> None:
        self.kind = kind
        self.label = label
        self.ledger = ledger
        self.where = where
        self.tensors = [HeldTensor(name, tensor) for name, tensor in found]
        self.ordinal = ledger.holds
        ledger.holds += 1
        if ledger.on_held is not None:
            ledger.on_held(self)

    @property
    def key(self) -> tuple[str, int]:
        """The identity of this set of tensors in a run, and in another run of the same program."""
        return ("held", self.ordinal)

    def changed(self) -> list[HeldTensor]:
        return [held for held in self.tensors if held.changed() is not None]


def tensors_in(value: Any, name: str) -> list[tuple[str, torch.Tensor]]:
    """The tensors reachable from ``value``: through containers, modules, closures, methods and objects."""
    found: list[tuple[str, torch.Tensor]] = []
    seen: set[int] = set()
    for each_name, tensor in _walk(value, name, 0, seen):
        found.append((each_name, tensor))
        if len(found) >= _MAX_TENSORS:
            break
    return found


def _walk(value: Any, name: str, depth: int, seen: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    import torch

    if id(value) in seen or depth > _MAX_DEPTH:
        return
    if isinstance(value, torch.Tensor):
        seen.add(id(value))
        if type(value) in values.plain_types():
            yield name, value
        return
    if value is None or isinstance(value, str | bytes | int | float | complex | type | types.ModuleType):
        return
    seen.add(id(value))
    if _is_array(value):
        alias = _alias_of(value)
        if alias is not None:
            yield name, alias
    elif isinstance(value, torch.nn.Module):
        yield from _module_tensors(value, name, seen)
    elif isinstance(value, list | tuple | set | frozenset):
        for i, item in enumerate(value):
            yield from _walk(item, f"{name}[{i}]", depth + 1, seen)
    elif isinstance(value, dict):
        for key, item in list(value.items()):
            yield from _walk(item, f"{name}[{key!r}]", depth + 1, seen)
    elif isinstance(value, types.MethodType):
        yield from _walk(value.__self__, name, depth + 1, seen)
        yield from _walk(value.__func__, name, depth + 1, seen)
    elif isinstance(value, types.FunctionType):
        free = zip(value.__code__.co_freevars, value.__closure__ or (), strict=True)
        for variable, cell in free:
            try:
                held = cell.cell_contents
            except ValueError:  # not assigned yet
                continue
            yield from _walk(held, variable, depth + 1, seen)
        for default in value.__defaults__ or ():
            yield from _walk(default, name, depth + 1, seen)
        for variable in value.__code__.co_names:
            held = value.__globals__.get(variable)
            if isinstance(held, torch.Tensor | torch.nn.Module | dict | list):
                yield from _walk(held, variable, depth + 1, seen)
    elif isinstance(value, functools.partial):
        for part in (value.func, value.args, value.keywords):
            yield from _walk(part, name, depth + 1, seen)
    elif not isinstance(value, torch.autograd.graph.Node):
        # Read past the object's own attribute access, which may compute or raise anything.
        with contextlib.suppress(AttributeError):
            for key, item in list(object.__getattribute__(value, "__dict__").items()):
                yield from _walk(item, f"{name}.{key}", depth + 1, seen)


def _is_array(value: Any) -> bool:
    numpy = sys.modules.get("numpy")
    return numpy is not None and type(value) is numpy.ndarray


def _alias_of(array: Any) -> torch.Tensor | None:
    """A tensor over the memory of a NumPy array, where there is one for its kind."""
    import torch

    if not array.flags.writeable:  # for which PyTorch warns
        return None
    with contextlib.suppress(TypeError, ValueError), quiet():
        alias = torch.from_numpy(array)
        setattr(alias, _OF_ARRAY, True)
        return alias
    return None


def _module_tensors(module: torch.nn.Module, name: str, seen: set[int]) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters, buffers and plain attributes, but not the statistics that a layer updates as it runs."""
    import torch

    for path, each in module.named_modules():
        prefix = f"{name}.{path}" if path else name
        own = [*each._parameters.items(), *each._buffers.items()]
        own += [(k, v) for k, v in vars(each).items() if isinstance(v, torch.Tensor)]
        for key, tensor in own:
            if tensor is None or id(tensor) in seen or (key in _STATISTICS and each.training):
                continue
            seen.add(id(tensor))
            if type(tensor) in values.plain_types():
                yield f"{prefix}.{key}", tensor


@contextmanager
def contents(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[None]:
    """Put earlier contents into tensors for a while: ``(tensor, what it is to hold)``, same shape each.

    Their version counters do not move.
    """
    saved = []
    with quiet():
        for tensor, content in pairs:
            if tensor.shape == content.shape:
                saved.append((tensor, values.snapshot(tensor)))
                tensor.data.copy_(content)
    try:
        yield
    finally:
        with quiet():
            for tensor, content in reversed(saved):
                tensor.data.copy_(content)
