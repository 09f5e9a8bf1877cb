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


def heads(story: Story, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Attention with several heads calls the above where no mode sees it."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    if not story.moved(args, kwargs) or not _fraction(args, kwargs) or not kwargs.get("training", True):
        return NotImplemented
    with sdpa_kernel(SDPBackend.MATH):
        return torch.nn.functional.multi_head_attention_forward(*args, **kwargs)


def _fraction(args: tuple[Any, ...], kwargs: dict[str, Any]) -> float:
    """The dropout: of the numbers that these functions take, the only one with a fraction."""
    return next((a for a in args if isinstance(a, float)), kwargs.get("dropout_p", 0.0))


def recurrent(name: str) -> Any:
    """Recurrent layers of cuDNN do the same."""

    def run(story: Story, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        import torch

        if not story.moved(args, kwargs) or not _fraction(args, kwargs):
            return NotImplemented
        cudnn: Any = torch.backends.cudnn
        kept, cudnn.enabled = cudnn.enabled, False
        try:
            return getattr(torch._C._VariableFunctions, name)(*args, **kwargs)
        finally:
            cudnn.enabled = kept

    return run
