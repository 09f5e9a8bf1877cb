"""Our own tensor operations, out of sight: no autograd, no user's modes, no hooks, no random numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from pytest_inplace.engine.releases import top_of_hooks

if TYPE_CHECKING:
    import torch


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Run operations that no user's dispatch or function mode sees and that autograd does not record."""
    import torch
    from torch.utils._python_dispatch import _disable_current_modes

    with contextlib.ExitStack() as stack:
        stack.enter_context(torch._C.DisableTorchFunction())
        stack.enter_context(_disable_current_modes())
        stack.enter_context(torch.no_grad())
        stack.enter_context(_without_saved_tensor_hooks())
        yield


@contextlib.contextmanager
def _without_saved_tensor_hooks() -> Iterator[None]:
    import torch

    autograd = torch._C._autograd
    removed = []
    while True:
        top = top_of_hooks()
        if top is None:
            break
        removed.append(top)
        autograd._pop_saved_tensors_default_hooks()
    try:
        yield
    finally:
        for pack, unpack in reversed(removed):
            autograd._push_saved_tensors_default_hooks(pack, unpack)


def profiler_state() -> Callable[[], bool]:
    """What tells whether a profiler of the user's is on."""
    import torch

    return getattr(torch._C._autograd, "_profiler_enabled", bool)


def make_alias() -> Callable[[torch.Tensor], torch.Tensor]:
    """``Tensor.detach`` that a profiler of the user's does not count."""
    import torch

    profiling = profiler_state()
    noting: Any = getattr(torch._C._autograd, "_enable_record_function", None)
    if noting is None:
        return torch.Tensor.detach

    def alias(tensor: torch.Tensor) -> torch.Tensor:
        if not profiling():
            return tensor.detach()
        noting(False)
        try:
            return tensor.detach()
        finally:
            noting(True)

    return alias
