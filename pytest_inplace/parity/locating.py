"""The first operator that gives another result on the device than on the CPU, from identical inputs."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from pytest_inplace.engine import values
from pytest_inplace.engine.quiet import quiet
from pytest_inplace.parity.comparing import MULTIPLE, same_bits
from pytest_inplace.parity.operators import (
    arguments_written,
    is_unfilled,
    is_view,
    mapped,
    tensors_in,
    widened,
)
from pytest_inplace.reports import call_sites
from pytest_inplace.reports.findings import TensorInfo, ValueDiff
from pytest_inplace.reports.rendering import shape_text

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Located:
    """An operator, where the user's code called it, and how its result differs."""

    operator: str
    phase: Literal["forward", "backward"]
    where: Any
    inputs: tuple[str, ...]
    output: str
    values: ValueDiff


class Locator:
    """An observer of a placement: repeats each operator on the CPU until one differs."""

    def __init__(self, device: str) -> None:
        self._device = device
        self.found: Located | None = None
        self.repeated = 0
        self.not_repeated: set[str] = set()

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], compute: Any) -> Any:
        if self.found is not None or is_view(func) or is_unfilled(func):
            return compute(func, args, kwargs)
        with quiet():
            there = {id(t): t for t in tensors_in((args, kwargs))}
            before = {key: t.detach().to("cpu", copy=True) for key, t in there.items() if _plain(t)}
        result = compute(func, args, kwargs)
        if len(before) == len(there):
            with quiet():
                try:
                    self._repeat(func, args, kwargs, there, before, result)
                except (RuntimeError, TypeError, ValueError):  # there is no such kernel on the CPU
                    self.not_repeated.add(str(func))
        return result

    def _repeat(self, func: Any, args: Any, kwargs: Any, there: Any, before: Any, result: Any) -> None:
        def run(change: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
            copies = {key: change(t.clone()) for key, t in before.items()}

            def host(value: Any) -> Any:
                import torch

                if isinstance(value, torch.Tensor):
                    return copies[id(value)]
                return torch.device("cpu") if isinstance(value, torch.device) else value

            given, named = mapped(host, args), mapped(host, kwargs)
            if change is not _same:
                given, named = widened(given), widened(named)
            out = func(*given, **named)
            written = arguments_written(func, given, named)
            left = [copies[key] for key in before if all(copies[key] is not w for w in written)]
            return tensors_in(out) + written, left

        expected, untouched = run(_same)
        self.repeated += 1
        written = arguments_written(func, args, kwargs)
        actual = tensors_in(result) + written
        left = [t for t in there.values() if all(t is not w for w in written)]
        for i, (right, got) in enumerate(zip(expected, actual, strict=True)):
            host = got.detach().to("cpu")
            if not same_bits(right, host) and not self._explained(run, i, right, host):
                self._differs(func, "gives another result", args, kwargs, right, host)
                return
        for right, got in zip(untouched, left, strict=True):
            host = got.detach().to("cpu")
            if not same_bits(right, host):
                self._differs(func, "writes to its input", args, kwargs, right, host)
                return

    def _explained(self, run: Any, index: int, right: torch.Tensor, got: torch.Tensor) -> bool:
        """Whether rounding explains it: double precision tells, from the inputs and from others near."""
        import torch

        if right.shape != got.shape or not (right.is_floating_point() or right.is_complex()):
            return False
        finite = right.isfinite()
        if not torch.equal(finite, got.isfinite()):
            return False
        exact = run(_wide)[0][index]
        eps = float(torch.finfo(right.dtype).eps)
        generator = torch.Generator().manual_seed(0)

        def jiggled(tensor: torch.Tensor) -> torch.Tensor:
            wide = _wide(tensor)
            if wide is tensor or not wide.is_floating_point():
                return wide
            return wide * (1 + eps * torch.empty_like(wide).uniform_(-1, 1, generator=generator))

        near = run(jiggled)[0][index]

        def distance(a: torch.Tensor, b: torch.Tensor) -> float:
            return float(torch.linalg.vector_norm(a[finite].to(exact.dtype) - b[finite].to(exact.dtype)))

        size = float(torch.linalg.vector_norm(exact[finite]))
        allowed = MULTIPLE * (distance(right, exact) + distance(near, exact) + eps * size)
        return distance(got, exact) <= allowed

    def _differs(self, func: Any, what: str, args: Any, kwargs: Any, right: Any, got: Any) -> None:
        import torch

        node = torch._C._current_autograd_node()
        where = _forward_of(node) if node is not None else None
        where = where or call_sites.capture(sys._getframe(3))
        self.found = Located(
            str(func).removesuffix(".default"),
            "backward" if node is not None else "forward",
            where,
            tuple(shape_text(_info(t)) for t in tensors_in((args, kwargs))),
            f"{what} {shape_text(_info(right))}",
            values.difference(right, got),
        )

    def made(self, result: Any) -> None:
        """Remember where the user's code made the nodes that lead to ``result``."""
        for tensor in tensors_in(result):
            if tensor.grad_fn is not None:
                _mark(tensor.grad_fn, call_sites.capture(sys._getframe(2)))


_KEY = "pytest_inplace_parity"


def _mark(node: Any, where: Any) -> None:
    stack = [node]
    while stack:
        current = stack.pop()
        if current is None or _KEY in current.metadata:
            continue
        current.metadata[_KEY] = where
        stack.extend(following for following, _ in current.next_functions)


def _forward_of(node: Any) -> Any:
    return node.metadata.get(_KEY)


def _same(tensor: torch.Tensor) -> torch.Tensor:
    return tensor


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    if tensor.is_complex():
        return tensor.to(torch.complex128)
    return tensor.to(torch.float64) if tensor.is_floating_point() else tensor


def _plain(tensor: torch.Tensor) -> bool:
    import torch

    return tensor.layout is torch.strided and not tensor.is_meta


def _info(tensor: torch.Tensor) -> TensorInfo:
    return TensorInfo(None, tuple(tensor.shape), values.dtype_name(tensor))
