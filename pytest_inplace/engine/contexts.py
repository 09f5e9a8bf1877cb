"""What the backward of a custom Function does to its own ctx, so that a trial of it can be undone.

A backward may use up what forward left for it: pop from a list, delete an attribute to free memory, note that
it ran. After a trial all that is as it was, and the real backward pass finds what it needs.
"""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from pytest_inplace.engine import values
from pytest_inplace.engine.functions import held_by

if TYPE_CHECKING:
    import torch

_MAX_CONTAINERS = 1000


class Contexts:
    """The ctx of every custom Function in a graph: its attributes, and the containers among them."""

    def __init__(self, nodes: Iterable[Any]) -> None:
        from torch.autograd.function import BackwardCFunction

        self._own = [node for node in nodes if isinstance(node, BackwardCFunction)]

    def hidden_leaves(self, known: list[torch.Tensor]) -> list[torch.Tensor]:
        """The leaves that a backward can reach and the graph does not: it runs a backward pass of its own.

        Checkpoints are written so. What they find goes into the ``.grad`` of these leaves.
        """
        seen = set(map(id, known))
        found = {}
        for ctx in self._own:
            held = held_by(ctx)
            for item in held.tensors if held is not None else ():
                tensor = item.ref()
                if tensor is None or id(tensor) in seen or not values.is_leaf(tensor):
                    continue
                if tensor.requires_grad:
                    found[id(tensor)] = tensor
        return list(found.values())

    def remember(self) -> Callable[[], None]:
        """What puts everything back as it is now."""
        undo: list[Callable[[], None]] = []
        seen: set[int] = set()
        for ctx in self._own:
            attributes = vars(ctx)
            _remember(attributes, undo, seen)

        def restore() -> None:
            for each in undo:
                each()

        return restore


def _remember(container: Any, undo: list[Callable[[], None]], seen: set[int]) -> None:
    if id(container) in seen or len(seen) >= _MAX_CONTAINERS:
        return
    kind = type(container)
    if kind is dict:
        parts = list(container.values())
        undo.append(_refill(container, container.update, dict(container)))
    elif kind in (list, collections.deque):
        parts = list(container)
        undo.append(_refill(container, container.extend, parts))
    elif kind is set:
        parts = []
        undo.append(_refill(container, container.update, set(container)))
    elif kind is tuple:
        parts = list(container)
    else:
        return
    seen.add(id(container))
    for part in parts:
        _remember(part, undo, seen)


def _refill(container: Any, fill: Callable[[Any], None], content: Any) -> Callable[[], None]:
    def refill() -> None:
        container.clear()
        fill(content)

    return refill
