"""Tensors that were made before or beside a placed run: moved where the run is, and put back after it."""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_inplace.engine import values
from pytest_inplace.engine.quiet import quiet

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class _Adopted:
    """A tensor, what its data and its gradient were, and where the run met it."""

    tensor: weakref.ref[torch.Tensor]
    data: torch.Tensor
    grad: torch.Tensor | None
    key: tuple[int, torch.dtype]
    digest: int | None
    where: Any


class Adoption:
    """Keeps what every adopted tensor was, so that the run leaves no trace in it.

    A tensor keeps its identity: only its ``.data`` is exchanged. Tensors that share memory share the
    copy of it, so views of one another stay views.
    """

    def __init__(self, device: torch.device, wide: torch.dtype | None) -> None:
        self._device = device
        self._wide = wide
        self._copies: dict[tuple[int, torch.dtype], tuple[Any, torch.Tensor]] = {}
        self._adopted: list[_Adopted] = []
        self._full = 256
        self._snapshots: dict[int, tuple[Any, torch.Tensor, torch.Tensor]] = {}
        self._grads: list[tuple[weakref.ref[torch.Tensor], torch.Tensor | None]] = []

    def adopt(self, tensor: torch.Tensor, where: Any = None) -> str | None:
        """Move ``tensor``; the result is why it cannot be moved, or ``None``."""
        if tensor.grad_fn is not None:
            return "a tensor of a graph that was built outside the run"
        why = values.unreadable(tensor)
        if why is not None:
            return f"a tensor that cannot be moved ({why})"
        with quiet():
            if len(self._adopted) >= self._full:
                self._forget()
            key = (tensor.untyped_storage()._cdata, tensor.dtype)
            if key not in self._copies:
                self._copies[key] = (tensor.untyped_storage(), self._moved(_whole(tensor)))
            copy = self._copies[key][1]
            grad = tensor.grad if tensor.is_leaf else None
            digest = values.digest(tensor)
            self._adopted.append(_Adopted(weakref.ref(tensor), tensor.data, grad, key, digest, where))
            tensor.data = copy.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset())
        return self.adopt(grad, where) if grad is not None and grad.device.type == "cpu" else None

    def _forget(self) -> None:
        """Let go of what is gone: a loop over batches adopts new tensors in every turn."""
        self._adopted = [a for a in self._adopted if a.tensor() is not None]
        kept = {a.key for a in self._adopted}
        self._copies = {key: copy for key, copy in self._copies.items() if key in kept}
        self._full = max(256, 2 * len(self._adopted))

    def written_elsewhere(self) -> list[Any]:
        """Where tensors were adopted whose own memory was written since, through NumPy for one."""
        with quiet():
            return [a.where for a in self._adopted if values.digest(a.data) != a.digest]

    def _moved(self, whole: torch.Tensor) -> torch.Tensor:
        if self._wide is not None:
            return whole.to(self._wide)
        return whole.to(self._device)

    def snapshot(self, tensor: torch.Tensor) -> None:
        """Remember the content of ``tensor``, for a run that happens in place."""
        storage = tensor.untyped_storage()
        if storage._cdata in self._snapshots or values.unreadable(tensor) is not None:
            return
        with quiet():
            whole = _whole(tensor)
            self._snapshots[storage._cdata] = (storage, whole, whole.clone())
            if tensor.is_leaf and tensor.requires_grad:
                self._grads.append((weakref.ref(tensor), tensor.grad))
                if tensor.grad is not None:
                    self.snapshot(tensor.grad)

    def born(self, tensor: torch.Tensor) -> None:
        """``tensor`` was made inside the run: there is nothing to put back."""
        storage = tensor.untyped_storage()
        self._snapshots.setdefault(storage._cdata, (storage, tensor, tensor))

    def put_back(self) -> None:
        """Leave every tensor that is still there as it was."""
        with quiet():
            for adopted in reversed(self._adopted):
                tensor = adopted.tensor()
                if tensor is None:
                    continue
                if tensor.is_leaf:
                    tensor.grad = None
                tensor.data = adopted.data
                if adopted.grad is not None:
                    tensor.grad = adopted.grad
            for _, whole, copy in self._snapshots.values():
                if copy is not whole:
                    whole.copy_(copy)
            for ref, grad in self._grads:
                tensor = ref()
                if tensor is not None:
                    tensor.grad = grad
        self._adopted.clear()
        self._copies.clear()
        self._snapshots.clear()


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """All the memory that ``tensor`` is a part of, as a flat tensor."""
    import torch

    storage = tensor.untyped_storage()
    count = storage.nbytes() // tensor.element_size()
    return torch.empty(0, dtype=tensor.dtype).set_(storage, 0, (count,), (1,))
