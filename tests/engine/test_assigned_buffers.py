"""A Function that fills a buffer slot by slot behind autograd's back, as solvers of equations do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from pytest_inplace.engine import evidence
from pytest_inplace.engine.guard import examine

BUFFER = torch.zeros(3)


class Assign(torch.autograd.Function):
    """Right as long as nobody uses the slot before it is filled, or the buffer that went in afterwards."""

    @staticmethod
    def forward(ctx: Any, buffer: torch.Tensor, value: torch.Tensor, slot: int) -> torch.Tensor:
        ctx.slot = slot
        buffer.data[..., slot] = value
        return buffer

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad, grad[..., ctx.slot], None


def solve(steps: int, backward: bool) -> Callable[[], None]:
    def program() -> None:
        y = torch.tensor([1.0, 2.0], requires_grad=True)
        k = Assign.apply(torch.zeros(2, steps + 1), y * 1.5, 0)
        for i in range(steps):
            step = y + (k[..., : i + 1] * 0.1).sum(dim=-1)
            k = Assign.apply(k, step * 1.5, i + 1)
        if backward:
            k.sum().backward()
            assert y.grad is not None

    return program


@pytest.mark.parametrize("backward", [False, True])
def test_slots_that_nobody_used_before_are_no_finding(backward: bool) -> None:
    assert examine(solve(4, backward)).findings == []


@pytest.mark.parametrize("backward", [False, True])
def test_the_buffer_that_went_in_must_not_be_used_afterwards(backward: bool) -> None:
    def program() -> None:
        y = torch.tensor([1.0, 2.0], requires_grad=True)
        first = Assign.apply(torch.zeros(2, 2), y * 1.5, 0)
        Assign.apply(first, y * 2, 1)
        used = first * 2
        if backward:
            used.sum().backward()

    (finding,) = examine(program).findings
    assert (finding.code, finding.state) == ("INP202", "confirmed" if backward else "latent")


def test_memory_that_holds_the_result_of_the_first_run_already() -> None:
    """The second run then writes what is there. That proves nothing, and is counted."""

    def program() -> None:
        BUFFER.add_(0)
        y = torch.tensor(1.0, requires_grad=True)
        k = Assign.apply(BUFFER, y * 2, 0)
        Assign.apply(k, y * 3, 1).sum().backward()

    BUFFER.zero_()
    examination = examine(program)
    assert examination.findings == []
    assert examination.coverage.reasons == {"an input that the second run did not write again": 1}


def test_each_node_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    looked_at = []
    uses_in = evidence.uses_in

    def counting(nodes: Any, sought: Any) -> Any:
        nodes = list(nodes)
        looked_at.extend(nodes)
        return uses_in(nodes, sought)

    monkeypatch.setattr(evidence, "uses_in", counting)
    examine(solve(40, backward=False))
    assert 0 < len(looked_at) < 40 * 10
