"""Tensors that a placed program pinned: for the program, they are in the host's memory."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from pytest_inplace.parity.traffic import Tell, Traffic

if TYPE_CHECKING:
    import torch


class Pinned:
    """Remembers them, and follows copies from the first one on."""

    def __init__(self, tell: Tell) -> None:
        self._tell = tell
        self._memory: dict[int, Any] = {}
        self._listening = contextlib.ExitStack()
        self.traffic: Traffic | None = None

    def pin(self, tensor: torch.Tensor) -> None:
        """A tensor in pinned memory was made."""
        from torch.multiprocessing.reductions import StorageWeakRef

        storage = tensor.untyped_storage()
        self._memory[storage._cdata] = StorageWeakRef(storage)  # type: ignore[no-untyped-call]
        if self.traffic is None:
            self.traffic = Traffic(self._tell, self.has, streams=False)
            self._listening.enter_context(self.traffic.listening())

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is pinned, or a part of one that is."""
        import torch

        if not self._memory or tensor.layout is not torch.strided:
            return False
        memory = self._memory.get(tensor.untyped_storage()._cdata)
        return memory is not None and not memory.expired()

    def stop(self) -> None:
        self._listening.close()
