"""Kernels that draw random numbers as no CPU can: others take their place, which draw the CPU's."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_inplace.parity.story import Story


def attention(story: Story, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Fused attention drops out by numbers of its own; the plain formula, by those of ``dropout``."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    dropout = args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
    if not story.moved(args, kwargs) or not dropout:
        return NotImplemented
    with sdpa_kernel(SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(*args, **kwargs)


def recurrent(name: str) -> Any:
    """Recurrent layers of cuDNN do the same."""

    def run(story: Story, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        import torch

        # Of the numbers that these functions take, the dropout is the only one with a fraction.
        dropout = next((a for a in args if isinstance(a, float)), 0.0)
        if not story.moved(args, kwargs) or not dropout:
            return NotImplemented
        cudnn: Any = torch.backends.cudnn
        kept, cudnn.enabled = cudnn.enabled, False
        try:
            return getattr(torch._C._VariableFunctions, name)(*args, **kwargs)
        finally:
            cudnn.enabled = kept

    return run
