"""PyTorch's own words about in-place errors: reproduced where our hooks replace its check, and recognised.

Saved-tensor hooks switch PyTorch's version check off, so the check is redone on unpack. The wording is
learnt from the installed torch by making it raise the error once on a small tensor, never copied.
"""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

VERSION_ERROR = "modified by an inplace operation"
_DETACHED = "has been detached in-place"
_LEAF = re.compile(
    r"a (view of a )?leaf Variable that requires grad (is being used|has been used) in an in-?place operation"
)
_VIEW = re.compile(
    r"is a view (of a view )?and (its base or another view of its base has been|is being) modified inplace"
    r"|view (of a view )?(was|which was) created in (no_grad|inference) mode and is being modified inplace"
    r"|A view was created in (no_grad|inference) mode"
    r"|such an? .*views? .*modified inplace",
    re.IGNORECASE,
)


def native_rule(message: str) -> str | None:
    """The code of the rule that PyTorch itself enforced with this message, or ``None``."""
    if _LEAF.search(message):
        return "INP104"
    if _VIEW.search(message):
        return "INP105"
    return None


@functools.lru_cache(maxsize=4)
def _sample(anomaly: bool, with_producer: bool) -> str:
    """PyTorch's version error about a float32 tensor of shape [3], from a real graph."""
    import torch

    from pytest_inplace.engine.quiet import quiet

    with quiet(), torch.enable_grad(), torch.autograd.set_detect_anomaly(anomaly, check_nan=False):
        leaf = torch.zeros(3, requires_grad=True)
        if with_producer:
            saved = leaf.exp()
            node = saved.grad_fn
            saved.detach().add_(1)
            attribute = "_saved_result"
        else:
            node = leaf.exp().sin().mul(leaf).grad_fn
            leaf.detach().add_(1)
            attribute = "_saved_other"
        try:
            getattr(node, attribute)
        except RuntimeError as error:
            return str(error)
    raise AssertionError("PyTorch did not raise its version error on a modified saved tensor")


def producer_name(node_name: str) -> str:
    """The name of an autograd node as PyTorch's version error prints it in this torch version."""
    if "ExpBackward0" in _sample(False, True):
        return node_name
    return re.sub(r"Backward(\d*)$", lambda m: "" if m[1] == "0" else m[1], node_name)


@functools.lru_cache(maxsize=128)
def _type_text(dtype: torch.dtype, layout: torch.layout, device: str) -> str | None:
    """What the version error calls a tensor of this kind (``torch.FloatTensor``, ``CPUBoolType``)."""
    import torch
    from torch.autograd import Function

    from pytest_inplace.engine.quiet import quiet
    from pytest_inplace.engine.releases import set_version

    class Saving(Function):
        @staticmethod
        def forward(ctx: Any, leaf: torch.Tensor, kept: torch.Tensor) -> torch.Tensor:
            ctx.save_for_backward(kept)
            return leaf.clone()

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            return grad, None

    with quiet(), torch.enable_grad():
        try:
            kept = torch.empty((2, 2), dtype=dtype, layout=layout, device=device)
            node: Any = Saving.apply(torch.zeros(1, requires_grad=True), kept).grad_fn  # type: ignore[no-untyped-call]
            set_version(kept, kept._version + 1)
            node.saved_tensors  # noqa: B018
        except (RuntimeError, NotImplementedError, TypeError) as error:
            found = re.search(r"inplace operation: \[(\S+) \[", str(error))
            return found[1] if found else None
    return None


def version_error(
    tensor: torch.Tensor, producer: str | None, output_nr: int, saved: int, now: int
) -> RuntimeError:
    """The error that plain PyTorch raises for ``tensor``, saved at one version and found at another.

    Args:
        tensor: the saved tensor, of any shape and dtype.
        producer: the name of the node that produced it, or ``None`` for a leaf.
        output_nr: which of that node's outputs it is.
        saved: its version when it was saved.
        now: its version now.
    """
    import torch

    anomaly = torch.is_anomaly_enabled()
    message = _sample(anomaly, producer is not None)
    kind = _type_text(tensor.dtype, tensor.layout, tensor.device.type) or tensor.type()
    shape = ", ".join(map(str, tensor.shape))
    if tensor.is_nested:
        shape = str(tensor._nested_tensor_size()).strip("[]")
    message = message.replace("[torch.FloatTensor [3]]", f"[{kind} [{shape}]]")
    message = message.replace(
        "is at version 1; expected version 0", f"is at version {now}; expected version {saved}"
    )
    if producer is not None:
        message = re.sub(
            r"which is output 0 of Exp\w*,",
            lambda _: f"which is output {output_nr} of {producer_name(producer)},",
            message,
        )
    return RuntimeError(message)


def detached_error() -> RuntimeError:
    """The error of a saved tensor on which ``detach_()`` was called before backward."""
    return RuntimeError(_detached_sample())


@functools.lru_cache(maxsize=1)
def _detached_sample() -> str:
    import torch

    from pytest_inplace.engine.quiet import quiet

    with quiet(), torch.enable_grad():
        saved = torch.zeros(3, requires_grad=True) * 1
        total = saved.sin().sum()
        saved.detach_()
        try:
            total.backward()  # type: ignore[no-untyped-call]
        except RuntimeError as error:
            return str(error)
    raise AssertionError("PyTorch accepted a saved tensor that was detached in place")
