"""INP202: a forward that writes to its input does harm where something later used what it wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_inplace.engine.guard import examine
from pytest_inplace.reports.findings import Finding


class Cap(torch.autograd.Function):
    """Caps its input in place, which it does not say, and returns a copy."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x > 1)
        x.clamp_(max=1)  # written
        return x.clone()

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        return grad.masked_fill(ctx.saved_tensors[0], 0)


def findings(program: Callable[[], Any]) -> list[Finding]:
    found = examine(program)
    assert found.error is None
    return found.findings


def hidden() -> torch.Tensor:
    return torch.arange(6.0).view(2, 3).requires_grad_() * 1


def whole(h: torch.Tensor) -> torch.Tensor:
    Cap.apply(h)
    return h * 2


def through_the_base(h: torch.Tensor) -> torch.Tensor:
    Cap.apply(h[:, :2])
    return h * 2


def through_another_view(h: torch.Tensor) -> torch.Tensor:
    Cap.apply(h[1])
    return h[1] * 2


def through_an_older_view(h: torch.Tensor) -> torch.Tensor:
    row = h[1]
    Cap.apply(h)
    return row * 2


def of_a_leaf(_: torch.Tensor) -> torch.Tensor:
    x = torch.arange(3.0, requires_grad=True)
    Cap.apply(x)
    return x * 2


def other_elements(h: torch.Tensor) -> torch.Tensor:
    Cap.apply(h[1])
    return h[0] * 2


def elements_that_were_not_written(h: torch.Tensor) -> torch.Tensor:
    Cap.apply(h)
    return h[0, :2] * 2


def result_only(h: torch.Tensor) -> torch.Tensor:
    return Cap.apply(h) * 2


def before_only(h: torch.Tensor) -> torch.Tensor:
    return h * 2 + Cap.apply(h)


def values_only(h: torch.Tensor) -> torch.Tensor:
    return Cap.apply(h) * h.detach()


def where_no_gradient_goes(h: torch.Tensor) -> torch.Tensor:
    y = Cap.apply(h)
    return torch.where(h.detach() >= 1, y, h)


USES = [whole, through_the_base, through_another_view, through_an_older_view, of_a_leaf]
HARMLESS = [
    other_elements, elements_that_were_not_written, result_only, before_only, values_only,
    where_no_gradient_goes,
]  # fmt: skip


@pytest.mark.parametrize("use", USES)
def test_used_afterwards(use: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def program() -> None:
        use(hidden()).sum().backward()

    (finding,) = findings(program)
    assert (finding.code, finding.state) == ("INP202", "confirmed")
    assert finding.modified is not None
    assert finding.modified.source is not None
    assert finding.modified.source.endswith("# written")


@pytest.mark.parametrize("use", HARMLESS)
def test_not_used_afterwards(use: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def program() -> None:
        use(hidden()).sum().backward()

    assert findings(program) == []


def test_used_afterwards_without_backward() -> None:
    def program() -> torch.Tensor:
        return whole(hidden())

    (finding,) = findings(program)
    assert (finding.code, finding.state) == ("INP202", "latent")


@pytest.mark.parametrize("use", [result_only, before_only, values_only])
def test_not_used_afterwards_without_backward(use: Callable[[torch.Tensor], torch.Tensor]) -> None:
    def program() -> torch.Tensor:
        return use(hidden())

    assert findings(program) == []
