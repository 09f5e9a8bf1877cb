"""Tensors that somebody keeps until backward outside autograd's saved variables, where no version is checked.

A custom Function keeps them on its ctx, a user's saved-tensor hooks in what they return from pack, a
checkpoint in the function and the arguments that it will call again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from pytest_inplace.engine import values
from pytest_inplace.engine.ledger import Ledger
from pytest_inplace.engine.quiet import quiet
from pytest_inplace.engine.reach import Named, is_alias
from pytest_inplace.engine.references import TensorRef
from pytest_inplace.reports.call_sites import Capture

if TYPE_CHECKING:
    import torch


class HeldTensor:
    """One kept tensor: where it is kept, and its version and content when it was put there."""

    __slots__ = ("_alias", "digest", "name", "ref", "version")

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        self.name = name
        self.ref = TensorRef(tensor)
        # Of an array the tensor is only our way to look at its memory, so nobody else keeps it.
        self._alias = tensor if is_alias(tensor) else None
        self.version = tensor._version
        self.digest = values.digest(tensor)

    def changed(self) -> torch.Tensor | None:
        """The tensor, if it is alive and its content is not what it was."""
        tensor = self.ref()
        if tensor is None or (self.digest is None and tensor._version == self.version):
            return None
        return tensor if values.rewritten(tensor, self.digest) or self.digest is None else None


class Held:
    """The tensors that one ctx, packed value or checkpoint keeps; ``kind`` says which of these."""

    __slots__ = ("__weakref__", "kind", "label", "ledger", "ordinal", "reach", "tensors", "used", "where")

    def __init__(
        self,
        kind: str,
        label: str,
        ledger: Ledger,
        where: Capture | None,
        found: list[Named],
        reach: Callable[[], list[Named]] | None = None,
    ) -> None:
        self.kind = kind
        self.label = label
        self.reach = reach
        self.used = False
        self.ledger = ledger
        self.where = where
        self.tensors = [HeldTensor(name, tensor) for name, tensor in found]
        lane = ledger.lane
        self.ordinal = lane.holds
        lane.holds += 1
        if ledger.on_held is not None:
            ledger.on_held(self)

    @property
    def key(self) -> tuple[str, int]:
        """The identity of this set of tensors in a run, and in another run of the same program."""
        return ("held", self.ordinal)

    def written_result(self) -> tuple[HeldTensor, torch.Tensor] | None:
        """A kept result of an earlier operation that was overwritten.

        A parameter or a buffer is not meant, for to change these while an unused graph is alive is normal.
        """
        import torch

        if torch._C._current_graph_task_id() != -1:
            return None  # freed by a backward pass that ran and did not need it
        for held in self.tensors:
            tensor = held.changed()
            if tensor is not None:
                base = tensor if tensor._base is None else tensor._base
                if base.grad_fn is not None:
                    return held, tensor
        return None

    def changed(self) -> list[tuple[HeldTensor, torch.Tensor]]:
        """What differs from what was kept, with the tensor that is there now."""
        written = [(held, tensor) for held in self.tensors if (tensor := held.changed()) is not None]
        return written or self._exchanged()

    def _exchanged(self) -> list[tuple[HeldTensor, torch.Tensor]]:
        """Another tensor, with other content, is where one was kept: in a list of the caller's, say."""
        if self.reach is None:
            return []
        were = unambiguous((held.name, held) for held in self.tensors)
        found = []
        for name, tensor in unambiguous(self.reach()).items():
            held = were.get(name)
            if held is not None and held.ref() is not tensor and values.rewritten(tensor, held.digest):
                found.append((held, tensor))
        return found


T = TypeVar("T")


def unambiguous(named: Iterable[tuple[str, T]]) -> dict[str, T]:
    """By name, without the names that several have."""
    pairs = list(named)
    times = Counter(name for name, _ in pairs)
    return {name: value for name, value in pairs if times[name] == 1}


@contextmanager
def contents(pairs: list[tuple[torch.Tensor, torch.Tensor]]) -> Iterator[None]:
    """Put earlier contents into tensors for a while: ``(tensor, what it is to hold)``, same shape each.

    Their version counters do not move.
    """
    saved = []
    with quiet():
        for tensor, content in pairs:
            if tensor.shape == content.shape and not values.freed(tensor) and not values.freed(content):
                saved.append((tensor, values.snapshot(tensor)))
                tensor.data.copy_(content)
    try:
        yield
    finally:
        with quiet():
            for tensor, content in reversed(saved):
                if not values.freed(tensor):  # the code that ran may have given its memory back
                    tensor.data.copy_(content)
