"""Weak references to the user's tensors that step aside for ``torch.utils.swap_tensors``.

It exchanges two tensor objects, and refuses to if either is weakly referenced or is saved for backward.
"""

from __future__ import annotations

import functools
import gc
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytest_inplace.engine.ledger import OUTPUT, Ledger, Record
from pytest_inplace.engine.releases import in_place_of

if TYPE_CHECKING:
    import torch


class TensorRef:
    """A weak reference to a tensor: call it for the tensor, or ``None`` once that is gone."""

    __slots__ = ("__weakref__", "_ref")

    def __init__(self, tensor: torch.Tensor) -> None:
        self.point_to(tensor)

    def point_to(self, tensor: torch.Tensor) -> None:
        """Refer to this tensor from now on."""
        self._ref: _Ref | None = _Ref(tensor)
        self._ref.owner = weakref.ref(self)

    def let_go(self) -> None:
        """Refer to nothing for a while."""
        self._ref = None

    def __call__(self) -> torch.Tensor | None:
        return None if self._ref is None else self._ref()


class _Ref(weakref.ref[Any]):
    __slots__ = ("owner",)
    owner: weakref.ref[TensorRef]


def patches(active_ledger: Callable[[], Ledger | None]) -> list[tuple[Any, str, Any]]:
    """What to replace, by what: ``(owner, attribute, replacement)``."""
    import torch

    def make(original: Callable[..., None]) -> Callable[..., None]:
        @functools.wraps(original)
        def swap_tensors(t1: torch.Tensor, t2: torch.Tensor) -> None:
            __tracebackhide__ = True
            if active_ledger() is None:
                original(t1, t2)
                return
            for name, tensor in (("t1", t1), ("t2", t2)):
                _refuse_saved(name, tensor)
            ours = [(ref, tensor) for tensor in (t1, t2) for ref in _ours(tensor)]
            for ref, _ in ours:
                ref.let_go()
            try:
                original(t1, t2)
            finally:
                for ref, tensor in ours:
                    ref.point_to(tensor)

        return swap_tensors

    return [in_place_of(torch.utils, "swap_tensors", make)]


def _ours(tensor: torch.Tensor) -> list[TensorRef]:
    owners = [ref.owner() for ref in weakref.getweakrefs(tensor) if type(ref) is _Ref]
    return [owner for owner in owners if owner is not None]


def _refuse_saved(name: str, tensor: Any) -> None:
    """Refuse what PyTorch would refuse: with our hooks autograd does not count as a holder of the tensor."""
    saved = sum(
        issubclass(type(o), Record) and o.kind != OUTPUT and o.tensor is tensor for o in gc.get_objects()
    )
    if saved:
        raise RuntimeError(
            f"Expected use_count of {name} to be 1 or 2 with an AccumulateGrad node but got "
            f"{tensor._use_count() + saved} make sure you are not holding references to the tensor in "
            "other places."
        )
