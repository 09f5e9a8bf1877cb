"""``gradcheck`` overwrites its inputs while graphs that saved them are alive: no reason for a second run."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pytest_inplace.engine.guard import examine


class Square(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return 2 * x * grad


def leaf() -> torch.Tensor:
    return torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("function", [Square.apply, lambda x: x * x, lambda x: x.exp().sin()])
def test_gradcheck_is_not_run_again(function: Any, fast: bool) -> None:
    runs = []

    def program() -> None:
        runs.append(1)
        x = leaf()
        for _ in range(2):
            assert torch.autograd.gradcheck(function, (x,), fast_mode=fast)
            function(x).sum().backward()
        assert torch.autograd.gradgradcheck(function, (x,), fast_mode=fast)

    assert examine(program).findings == []
    assert runs == [1]


@pytest.mark.parametrize("late", [False, True])
def test_what_is_saved_beside_it_is_still_looked_at(late: bool) -> None:
    def program() -> None:
        x = leaf()
        if late:
            torch.autograd.gradcheck(Square.apply, (x,))
        h = x.exp()
        y = h.exp()
        h.mul_(2)
        if not late:
            torch.autograd.gradcheck(Square.apply, (x,))
        del y

    (finding,) = examine(program).findings
    assert (finding.code, finding.state) == ("INP101", "latent")


def test_a_wrong_function_is_found_in_the_analytical_part() -> None:
    def wrong(x: torch.Tensor) -> torch.Tensor:
        h = x * 1
        y = h * h
        h.data.mul_(2)
        return y

    def program() -> None:
        assert not torch.autograd.gradcheck(wrong, (leaf(),), raise_exception=False)

    codes = {(finding.code, finding.state) for finding in examine(program).findings}
    assert codes == {("INP102", "confirmed")}
