"""The two kinds of mode that see what a program does: below autograd and above it."""

from __future__ import annotations

import functools
from typing import Any


@functools.cache
def mode_classes() -> tuple[Any, Any]:
    """Classes of modes that hand every operator, and every function, to a handler."""
    import torch
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Dispatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
        def __init__(self, handler: Any) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.handler = handler

    def dispatch(self: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            return self.handler(func, args, kwargs or {})

    # Set afterwards: in the body of the class, torch would wrap it in a guard that costs more than it does.
    Dispatch.__torch_dispatch__ = dispatch  # type: ignore[method-assign]

    class Function(TorchFunctionMode):
        def __init__(self, handler: Any) -> None:
            self.handler = handler

        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return self.handler(func, args, kwargs or {})

    return Dispatch, Function
