"""Our own tensor operations, out of sight: no autograd, no user's modes, no hooks, no random numbers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from pytest_inplace.engine.releases import top_of_hooks


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
