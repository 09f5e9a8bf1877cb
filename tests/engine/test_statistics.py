"""Statistics that a layer saves and updates in one operation, and then the user writes."""

from __future__ import annotations

import pytest
import torch

from pytest_inplace.engine.guard import examine, guard


def forward() -> tuple[torch.Tensor, torch.Tensor]:
    mean, variance = torch.zeros(3), torch.ones(3)
    x = torch.arange(6.0).reshape(2, 3).requires_grad_()
    y = torch.nn.functional.batch_norm(x * 2, mean, variance, training=True)
    return (y.exp() * y).sum(), variance


def reset_after_the_forward_pass_of_a_graph_that_is_not_used() -> None:
    loss, variance = forward()
    with torch.no_grad():
        variance.fill_(1.0)
    assert loss.requires_grad


def reset_before_backward() -> None:
    loss, variance = forward()
    with torch.no_grad():
        variance.fill_(1.0)  # WRITTEN
    loss.backward()


@pytest.mark.parametrize("two_runs", [True, False])
def test_resetting_them_when_no_backward_follows_is_normal(two_runs: bool) -> None:
    program = reset_after_the_forward_pass_of_a_graph_that_is_not_used
    if two_runs:
        assert examine(program).findings == []
    else:
        with guard(raises=False) as report:
            program()
        assert report.findings == []


def test_the_users_write_is_named_and_not_the_layers_own() -> None:
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        reset_before_backward()  # PyTorch refuses it, although training mode does not need it
    (finding,) = examine(reset_before_backward).findings
    assert finding.code == "INP101"
    assert finding.modified is not None
    assert finding.modified.source.endswith("# WRITTEN")
