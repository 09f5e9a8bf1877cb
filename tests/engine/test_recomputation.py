"""INP204: a checkpoint recomputes from something that has changed, be it no tensor that it was given."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from pytest_inplace.engine.guard import examine
from pytest_inplace.reports.findings import Finding

SCALES = {"now": 1.0}


class Shared:
    scale = torch.ones(3)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(3, 3)
        self.drop = nn.Dropout(0.5)
        self.temperature = 1.0
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return torch.tanh(self.drop(self.mix(x)) * self.temperature)


def findings(program: Callable[[], Any]) -> list[Finding]:
    torch.manual_seed(0)
    found = examine(program)
    assert found.error is None
    return found.findings


def inputs() -> torch.Tensor:
    return torch.ones(2, 3, requires_grad=True) * 1


def by_shared(x: torch.Tensor) -> torch.Tensor:
    return scaled(x).sin()


def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * Shared.scale


def attribute_changes(reentrant: bool) -> None:
    block = Block()
    y = checkpoint(block, inputs(), use_reentrant=reentrant)
    block.temperature *= 3  # changed
    y.sum().backward()


def global_changes(reentrant: bool) -> None:
    SCALES["now"] = 1.0
    y = checkpoint(lambda x: (x * SCALES["now"]).sin(), inputs(), use_reentrant=reentrant)
    SCALES["now"] = 2.0  # changed
    y.sum().backward()


def class_attribute_is_written(reentrant: bool) -> None:
    Shared.scale = torch.ones(3)
    y = checkpoint(by_shared, inputs(), use_reentrant=reentrant)
    Shared.scale.mul_(2)  # changed
    y.sum().backward()


def array_is_written(reentrant: bool) -> None:
    array = np.ones((2, 3), np.float32)
    y = checkpoint(lambda x, a: (x * torch.from_numpy(a)).sin(), inputs(), array, use_reentrant=reentrant)
    array *= 2  # changed
    y.sum().backward()


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize(
    "program", [attribute_changes, global_changes, class_attribute_is_written, array_is_written]
)
def test_what_it_reads_changes(program: Callable[[bool], None], reentrant: bool) -> None:
    (finding,) = findings(lambda: program(reentrant))
    assert finding.code == "INP204"
    assert finding.modified is not None
    assert finding.modified.source is not None
    assert finding.modified.source.endswith("# changed")


def test_a_flag_changes() -> None:
    def program() -> None:
        block = Block()
        y = checkpoint(block, inputs(), use_reentrant=True)
        block.eval()
        y.sum().backward()

    (finding,) = findings(program)
    assert finding.note is not None
    assert "training` has changed: True -> False" in finding.note


def test_it_counts_its_own_calls() -> None:
    def program() -> None:
        calls: list[int] = []

        def power(x: torch.Tensor) -> torch.Tensor:
            calls.append(1)
            return x ** len(calls)

        checkpoint(power, inputs() * 2, use_reentrant=True).sum().backward()

    assert [f.code for f in findings(program)] == ["INP204"]


def test_an_argument_is_told_once() -> None:
    def program(reentrant: bool) -> None:
        h = inputs()
        y = checkpoint(lambda x: x.exp(), h, use_reentrant=reentrant)
        h.data.mul_(2)
        y.sum().backward()

    assert [f.code for f in findings(lambda: program(False))] == ["INP204"]
    assert [f.code for f in findings(lambda: program(True))] == ["INP102"]


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("preserve", [False, True])
def test_right_uses(reentrant: bool, preserve: bool) -> None:
    def program() -> None:
        block = Block()
        norm = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.ReLU(inplace=True))
        encoder = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()
        for _ in range(2):
            for function in (block, norm):
                y = checkpoint(function, inputs(), use_reentrant=reentrant, preserve_rng_state=preserve)
                torch.rand(3)
                y.sum().backward()
                block.temperature *= 0.5
            x = torch.randn(2, 3, 4, requires_grad=True)
            checkpoint(encoder, x, use_reentrant=reentrant, preserve_rng_state=preserve).sum().backward()

    assert findings(program) == []


def test_random_numbers_that_nobody_preserves() -> None:
    def program() -> None:
        random.seed(0)
        y = checkpoint(lambda x: (x * random.random()).sin(), inputs(), use_reentrant=True)
        y.sum().backward()

    (finding,) = findings(program)
    assert finding.code == "INP204"
    assert finding.note is not None
    assert "global state" in finding.note


@pytest.mark.parametrize("write", [False, True])
def test_a_selective_checkpoint_may_be_run_again_once_only(write: bool) -> None:
    def policy(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        is_product = op == torch.ops.aten.mm.default
        return CheckpointPolicy.MUST_SAVE if is_product else CheckpointPolicy.PREFER_RECOMPUTE

    contexts = functools.partial(create_selective_checkpoint_contexts, policy)

    def program() -> torch.Tensor:
        w, factor = torch.ones(3, 3, requires_grad=True), torch.full((3, 3), 2.0)
        y = checkpoint(lambda x: (x @ factor).sin(), w * 1, use_reentrant=False, context_fn=contexts)
        if write:
            factor.data.mul_(2)  # changed
        y.sum().backward()
        assert w.grad is not None
        return w.grad

    plain, examination = program(), examine(program)
    assert torch.equal(examination.result, plain)
    assert [f.code for f in examination.findings] == ["INP204"] * write
    for finding in examination.findings:
        assert finding.note is None
        assert finding.relative_error == pytest.approx(1.0)
        assert finding.modified is not None
        assert finding.modified.source is not None
        assert finding.modified.source.endswith("# changed")


def view_as_argument(leaf: bool, write: bool) -> torch.Tensor:
    w, b = torch.tensor([1.0, 2.0, 3.0], requires_grad=True), torch.ones(3, requires_grad=True)
    h = w if leaf else w * 1
    with torch.no_grad():
        view = h.view(-1)
    y = checkpoint(lambda view, b: view * b, view, b, use_reentrant=False)
    if write:
        with torch.no_grad():
            h.mul_(2)
    y.sum().backward()
    assert b.grad is not None
    return b.grad


@pytest.mark.parametrize("leaf", [False, True])
def test_a_view_made_without_gradients_is_an_argument(leaf: bool) -> None:
    """Saved under hooks it would come back as a leaf, and the recomputation would save other tensors."""
    plain = view_as_argument(leaf, write=False)
    examination = examine(lambda: view_as_argument(leaf, write=False))
    assert torch.equal(examination.result, plain)
    assert examination.findings == []
    with pytest.raises(RuntimeError) as refused:
        view_as_argument(leaf, write=True)
    assert str(examine(lambda: view_as_argument(leaf, write=True)).error) == str(refused.value)


def test_a_checkpoint_of_a_torch_that_we_do_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    """What it was given is not to be found, nor whether it preserves random numbers: no claim is made."""
    from pytest_inplace.engine import user_hooks

    monkeypatch.setattr(user_hooks, "_checkpointed", lambda frame: {})

    def program() -> None:
        h = inputs() * 2
        checkpoint(
            lambda x: nn.functional.dropout(x, 0.5).exp(), h, use_reentrant=False, preserve_rng_state=False
        ).sum().backward()

    torch.manual_seed(0)
    assert findings(program) == []
