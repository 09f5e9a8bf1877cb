"""Faults to put into the stand-in device, each a kernel that computes something else than the CPU's.

A fault is registered for the operator that really runs on the device, in place of the fallback.
"""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterator
from typing import Any

import torch

FAULTS: dict[str, list[tuple[str, Callable[..., Any]]]] = {}
"""name -> the operators whose kernels are not as the CPU's, and these kernels."""


def fault(name: str, operator: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def register(kernel: Callable[..., Any]) -> Callable[..., Any]:
        FAULTS.setdefault(name, []).append((operator, kernel))
        return kernel

    return register


@contextlib.contextmanager
def injected(name: str) -> Iterator[None]:
    """Inside, the device has the fault."""
    library = torch.library.Library("aten", "IMPL")
    for operator, kernel in FAULTS[name]:
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


# No fault, but what each device may do: sums in another order, in the precision of the dtype.
# Accumulation in halves of the summed dimension rounds otherwise than in one go.


def _halves(a: torch.Tensor, b: torch.Tensor, product: Callable[..., Any]) -> torch.Tensor:
    middle = a.shape[-1] // 3
    if not middle or not a.is_floating_point():
        return product(a, b)
    first, second = product(a[..., middle:], b[..., middle:, :]), product(a[..., :middle], b[..., :middle, :])
    return first + second


@fault("other_sums", "mm")
def _other_mm(self: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    return on_host(lambda a, b: _halves(a, b, torch.mm), self, mat2)


@fault("other_sums", "bmm")
def _other_bmm(self: torch.Tensor, mat2: torch.Tensor) -> torch.Tensor:
    return on_host(lambda a, b: _halves(a, b, torch.bmm), self, mat2)


@fault("other_sums", "addmm")
def _other_addmm(
    self: torch.Tensor, mat1: torch.Tensor, mat2: torch.Tensor, *, beta: float = 1, alpha: float = 1
) -> torch.Tensor:
    def compute(c: torch.Tensor, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return beta * c + alpha * _halves(a, b, torch.mm)

    return on_host(compute, self, mat1, mat2)


@fault("other_sums", "sum.dim_IntList")
def _other_sum(
    self: torch.Tensor, dim: list[int] | None, keepdim: bool = False, *, dtype: torch.dtype | None = None
) -> torch.Tensor:
    def compute(t: torch.Tensor) -> torch.Tensor:
        dims = list(range(t.dim())) if not dim else list(dim)
        turned = t.flip(dims).contiguous()
        if t.dtype != torch.float32 or dtype is not None or t.dim() == 0:
            return torch.sum(turned, dims, keepdim, dtype=dtype)
        for d in sorted((d % t.dim() for d in dims), reverse=True):
            turned = turned.cumsum(d).narrow(d, -1, 1) if turned.shape[d] else turned.sum(d, True)
        return turned if keepdim else turned.reshape(t.sum(dims).shape)

    return on_host(compute, self)


@fault("other_sums", "convolution_overrideable")
def _other_convolution(
    input: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, stride: list[int],
    padding: list[int], dilation: list[int], transposed: bool, output_padding: list[int], groups: int,
) -> torch.Tensor:  # fmt: skip
    def compute(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None) -> torch.Tensor:
        if groups == 1 and not transposed:
            x, w = x.flip(1).contiguous(), w.flip(1).contiguous()
        return torch.convolution(x, w, b, stride, padding, dilation, transposed, output_padding, groups)

    return on_host(compute, input, weight, bias)


@fault("other_sums", "exp")
def _other_exp(self: torch.Tensor) -> torch.Tensor:
    # Another approximation, right to half a unit in the last place too.
    if self.dtype != torch.float32:
        return on_host(torch.exp, self)
    return on_host(lambda t: t.double().exp().float(), self)
