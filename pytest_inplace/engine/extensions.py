"""Was the graph still being built on after one of its saved tensors was written?

An optimizer step while an old, unused graph is alive is normal code; a write in the middle of the forward
pass that goes on from there is none.
"""

from __future__ import annotations

from threading import get_ident
from types import FrameType
from typing import TYPE_CHECKING, Any

from pytest_inplace.engine import values
from pytest_inplace.engine.evidence import Entry, WrittenInputs

if TYPE_CHECKING:
    import torch


class Extensions:
    """The written saves whose graph may still grow, looked for below whatever is made afterwards."""

    def __init__(self, inputs: WrittenInputs) -> None:
        self._waiting: list[Entry] = []
        self._inputs = inputs

    def written(self, entry: Entry) -> None:
        """The tensor of this save has just been written, for the first time if it was not noted before."""
        import torch

        if entry.written_at is None:
            entry.written_at = torch._C._autograd._get_sequence_nr()
            self._waiting.append(entry)

    def returned(self, frame: FrameType, value: Any) -> None:
        """A user function returns: look at what it gives back and what it made."""
        import torch

        if not self._waiting and not self._inputs:
            return
        held = [value, *frame.f_locals.values()]
        for item in held:
            for tensor in item if isinstance(item, list | tuple) else [item]:
                if isinstance(tensor, torch.Tensor):
                    self.look(tensor)

    def look(self, tensor: torch.Tensor) -> None:
        """Does the graph of ``tensor`` contain a written save and something newer?"""
        if not self._waiting and not self._inputs:
            return
        import torch

        with torch._C.DisableTorchFunction():
            root = values.node_of(tensor)
        self._inputs.look(root)
        here = get_ident()
        for entry in list(self._waiting):
            if entry.thread != here or root is None or entry.written_at is None:
                continue  # each thread numbers its nodes for itself
            if root._sequence_nr() < entry.written_at:
                continue
            if _reaches(root, entry.node):
                entry.extended = True
                self._waiting.remove(entry)


def _reaches(root: Any, sequence: int) -> bool:
    """Whether the node with this sequence number lies at or below ``root`` (inputs are always older)."""
    stack, seen = [root], set()
    while stack:
        node = stack.pop()
        number = node._sequence_nr()
        if number == sequence:
            return True
        if number < sequence or node in seen:
            continue
        seen.add(node)
        stack.extend(child for child, _ in node.next_functions if child is not None)
    return False
