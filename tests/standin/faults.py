"""Faults to put into the stand-in device, each a kernel that computes something else than the CPU's.

A fault is registered for the operator that really runs on the device, in place of the fallback.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch

FAULTS: dict[str, tuple[str, Callable[..., Any]]] = {}
"""name -> the operator whose kernel is wrong, and that kernel."""


def fault(name: str, operator: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(kernel: Callable[..., Any]) -> Callable[..., Any]:
        FAULTS[name] = operator, kernel
        return kernel

    return register


@contextlib.contextmanager
def injected(name: str) -> Iterator[None]:
    """Inside, the device has the fault."""
    operator, kernel = FAULTS[name]
    library = torch.library.Library("aten", "IMPL")
    library.impl(operator, kernel, "PrivateUse1")
    try:
        yield
    finally:
        library._destroy()


def on_host(operator: Any, *args: Any, **kwargs: Any) -> Any:
    """What the CPU's kernel gives, moved to the device."""

    def host(value: Any) -> Any:
        return value.cpu() if isinstance(value, torch.Tensor) else value

    def device(value: Any) -> Any:
        return value.to("standin") if isinstance(value, torch.Tensor) else value

    result = operator(*map(host, args), **{k: host(v) for k, v in kwargs.items()})
    return tuple(map(device, result)) if isinstance(result, tuple) else device(result)


@fault("relu_backward", "threshold_backward")
def _relu_backward(grad: torch.Tensor, self: torch.Tensor, threshold: float) -> torch.Tensor:
    return torch.where(self > threshold, grad, grad * 0.01)


@fault("gelu_constant", "gelu")
def _gelu(self: torch.Tensor, *, approximate: str = "none") -> torch.Tensor:
    return 0.5 * self * (1 + torch.erf(self * 0.70))


@fault("tanh_backward", "tanh_backward")
def _tanh_backward(grad: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
    return grad * (1 - output * output * (1 + 3e-4))


@fault("softmax", "_softmax")
def _softmax(self: torch.Tensor, dim: int, half_to_float: bool) -> torch.Tensor:
    return on_host(torch.ops.aten._softmax.default, self, dim, half_to_float) * (1 + 1e-3)


@fault("writes_its_input", "sigmoid")
def _sigmoid(self: torch.Tensor) -> torch.Tensor:
    result = on_host(torch.ops.aten.sigmoid.default, self)
    self.detach().mul_(1.25)
    return result


@fault("conv_backward", "convolution_backward_overrideable")
def _conv_backward(
    grad: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, stride: list[int], padding: list[int],
    dilation: list[int], transposed: bool, output_padding: list[int], groups: int, mask: list[bool],
) -> tuple[torch.Tensor | None, ...]:  # fmt: skip
    bias = [weight.shape[1] * groups if transposed else weight.shape[0]]
    a, b, c = on_host(torch.ops.aten.convolution_backward.default, grad, input, weight, bias, stride,
                      padding, dilation, transposed, output_padding, groups, mask)  # fmt: skip
    return a, b * 1.01, c


@fault("batch_norm_backward", "native_batch_norm_backward")
def _batch_norm_backward(grad: torch.Tensor, input: torch.Tensor, weight: torch.Tensor, *rest: Any) -> Any:
    a, b, c = on_host(torch.ops.aten.native_batch_norm_backward.default, grad, input, weight, *rest)
    shape = [1, -1] + [1] * (input.dim() - 2)
    return a + 0.01 * grad.mean([0, *range(2, input.dim())]).view(shape), b, c


@fault("nondeterministic_scatter", "scatter.src")
def _scatter(self: torch.Tensor, dim: int, index: torch.Tensor, src: torch.Tensor) -> torch.Tensor:
    order = list(range(index.shape[dim]))
    random.SystemRandom().shuffle(order)  # which of several values for one place wins is not defined
    pick = torch.tensor(order)
    return on_host(lambda a, i, s: a.scatter(dim, i[..., pick], s[..., pick]), self, index, src)


@fault("coarse_matmul", "mm")
def _mm(self: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    # As with TF32: ten bits of mantissa.
    def rounded(t: torch.Tensor) -> torch.Tensor:
        return (t.contiguous().view(torch.int32).add(0x1000).bitwise_and(-0x2000)).view(torch.float32)

    return on_host(lambda a, b: torch.ops.aten.mm.default(rounded(a), rounded(b)), self, mat2)


@fault("max_pool_backward", "max_pool2d_with_indices_backward")
def _max_pool_backward(grad: torch.Tensor, *rest: Any) -> torch.Tensor:
    result = on_host(torch.ops.aten.max_pool2d_with_indices_backward.default, grad, *rest)
    return result.roll(1, -1)


@fault("embedding_backward", "embedding_dense_backward")
def _embedding_backward(grad: torch.Tensor, indices: torch.Tensor, *rest: Any) -> torch.Tensor:
    # The last of several gradients for one row wins, as without atomic adds.
    number = rest[0]
    result = grad.new_zeros(number, grad.shape[-1])
    result[indices.reshape(-1)] = grad.reshape(-1, grad.shape[-1])
    return result
