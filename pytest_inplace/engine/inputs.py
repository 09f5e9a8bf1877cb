"""An input that a Function's forward wrote to without saying so: who uses what was written?"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_inplace.engine import values
from pytest_inplace.engine.quiet import quiet

if TYPE_CHECKING:
    import torch

Edge = tuple[Any, int]
"""A node and the number of its output; of a leaf, the leaf itself."""
Use = tuple[Any, int, "torch.Tensor"]
"""A node, the position of the argument in question, and which of its elements had been written."""


def roots(outputs: Sequence[Any]) -> list[Any]:
    """The nodes of the outputs of a backward pass, which are tensors or edges."""
    return [getattr(output, "grad_fn", None) or getattr(output, "node", None) for output in outputs]


def graph_below(nodes: list[Any]) -> list[Any]:
    """These nodes and all that they were made from."""
    seen: set[Any] = set()
    stack = list(nodes)
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        stack.extend(child for child, _ in node.next_functions)
    return list(seen)


@dataclass
class WrittenInput:
    """The tensor that was written, and the one that it is a view of: by edge, with the elements written."""

    targets: list[tuple[Edge, torch.Tensor]]

    @classmethod
    def of(cls, before: torch.Tensor, tensor: torch.Tensor) -> WrittenInput:
        """Compare the input with what it was. Call it inside ``quiet()``."""
        import torch

        if values.freed(before) or values.freed(tensor):
            changed = torch.ones_like(tensor, dtype=torch.bool)
        else:
            changed = (before != tensor) & ~((before != before) & (tensor != tensor))
        targets = [(_edge(tensor), changed)]
        base = tensor._base
        if base is not None and base.requires_grad and base.grad_fn is not tensor.grad_fn:
            targets.append((_edge(base), _seen_from(base, tensor, changed)))
        return cls(targets)


Sought = dict[Any, list[tuple[Any, int, "torch.Tensor"]]]
"""By edge: whose input it is, the number of the first node after the write, and the elements written."""


def seek(sought: Sought, owner: Any, written: WrittenInput, after: int, whole: bool = False) -> None:
    """Add a written input to those whose uses are sought.

    With ``whole`` only uses of the very tensor count, not of the one that it is a view of.
    """
    for (target, output_nr), changed in written.targets[:1] if whole else written.targets:
        key = (target, output_nr) if hasattr(target, "next_functions") else id(target)
        sought.setdefault(key, []).append((owner, after, changed))


def uses_in(nodes: Iterable[Any], sought: Sought) -> list[tuple[Any, Use]]:
    """The nodes that use written inputs, with whose those are. Each node is looked at once."""
    found: list[tuple[Any, Use]] = []
    for node in nodes:
        number = node._sequence_nr()
        for position, (child, output_nr) in enumerate(node.next_functions):
            if child is None:
                continue
            hits = sought.get((child, output_nr), ())
            if not hits and (leaf := getattr(child, "variable", None)) is not None:
                hits = sought.get(id(leaf), ())
            found += [(owner, (node, position, what)) for owner, after, what in hits if number >= after]
    return found


def sends_gradients(uses: list[tuple[Any, Use]], run: Callable[[], None]) -> list[Any]:
    """Whose uses send a gradient back for a written element in the backward pass that ``run`` tries."""
    sent: list[tuple[Any, torch.Tensor | None, torch.Tensor]] = []
    handles = [
        node.register_hook(_collect(sent, owner, position, changed))
        for owner, (node, position, changed) in uses
    ]
    try:
        run()
    except Exception:  # it is used, and more cannot be told
        return [owner for owner, _ in uses]
    finally:
        for handle in handles:
            handle.remove()
    with quiet():
        return [owner for owner, gradient, changed in sent if _touches(gradient, changed)]


def _edge(tensor: torch.Tensor) -> Edge:
    node = tensor.grad_fn
    return (tensor, 0) if node is None else (node, tensor.output_nr)


def _seen_from(base: torch.Tensor, view: torch.Tensor, changed: torch.Tensor) -> torch.Tensor:
    """The elements of ``base`` that are changed elements of its ``view``."""
    size = base.untyped_storage().nbytes() // base.element_size()
    memory = base.new_zeros(size, dtype=changed.dtype)
    memory.as_strided(view.shape, view.stride(), view.storage_offset()).copy_(changed)
    return memory.as_strided(base.shape, base.stride(), base.storage_offset())


def _collect(sent: list[Any], owner: Any, position: int, changed: torch.Tensor) -> Callable[[Any, Any], None]:
    def hook(grad_inputs: Any, _: Any) -> None:
        sent.append((owner, grad_inputs[position], changed))

    return hook


def _touches(gradient: torch.Tensor | None, changed: torch.Tensor) -> bool:
    if gradient is None:
        return False
    if gradient.shape != changed.shape or gradient.layout != changed.layout:
        return True
    return bool((gradient.ne(0) & changed).any())
