"""Parts of torch that no mode sees, changed while a placed program runs."""

from __future__ import annotations

import contextlib
import functools
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from pytest_inplace.engine.quiet import quiet

if TYPE_CHECKING:
    from pytest_inplace.parity.placement import Placement


@contextlib.contextmanager
def patched(placement: Placement) -> Iterator[None]:
    """Loaders without workers, files loaded where they say, autocast for the device that is meant."""
    import torch
    import torch.utils.data

    with contextlib.ExitStack() as stack:
        for owner, name, make in (
            (torch._utils, "_rebuild_tensor", _unplaced),
            (torch, "load", _unplaced),
            (torch, "save", _unplaced),
            (torch.utils.data.DataLoader, "__iter__", _loader),
            (torch.autocast, "__init__", _autocast(placement)),
        ):
            original = getattr(owner, name)
            setattr(owner, name, make(original))
            stack.callback(setattr, owner, name, original)
        yield


def _unplaced(original: Any) -> Any:
    @functools.wraps(original)
    def call(*args: Any, **kwargs: Any) -> Any:
        with quiet():  # tensors made in here have to be where the storage is that they are set to
            return original(*args, **kwargs)

    return call


def _loader(original: Any) -> Any:
    def iterate(self: Any) -> Any:
        # Worker processes have no modes, and cannot use a device that this process has in use. A loader of
        # the file or of a wider fixture was made before, so how one is made is no place to see to it.
        kept = {name: getattr(self, name) for name in ("num_workers", "timeout", "pin_memory")}
        self.num_workers, self.timeout, self.pin_memory = 0, 0, False
        try:
            return original(self)
        finally:
            for name, value in kept.items():
                setattr(self, name, value)

    return iterate


def _autocast(placement: Placement) -> Any:
    def make(original: Any) -> Any:
        def init(self: Any, device_type: str, *args: Any, **kwargs: Any) -> None:
            import torch

            if sys._getframe(1).f_globals.get("__name__") == "torch.utils.checkpoint":
                original(self, device_type, *args, **kwargs)  # it puts back what it found for each device
                return
            if device_type == "cpu" and placement.double:
                kwargs["enabled"] = False
            elif device_type == "cpu" and placement.moves:
                device_type = placement.device.type
                if not args and kwargs.get("dtype") is None:
                    kwargs["dtype"] = torch.get_autocast_dtype("cpu")
            original(self, device_type, *args, **kwargs)

        return init

    return make
