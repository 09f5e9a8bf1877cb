"""Graphs as deep as plain PyTorch allows: looking at the node of each tensor would overflow the stack."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import sys
import torch
from pytest_inplace.engine.ledger import Ledger
from pytest_inplace.engine.watch import Watch

w = torch.tensor(0.5, requires_grad=True)
watch = Watch(Ledger(), walk=False)
watch.start()
h = w
for _ in range(100_000):
    h = {operation}
if {backward}:
    torch.autograd.grad(h, w)
del h
watch.stop()
assert watch.ledger.saves >= 100_000, watch.ledger.saves
assert not watch.ledger.suspects
"""


@pytest.mark.parametrize("backward", [False, True], ids=["dropped", "after backward"])
@pytest.mark.parametrize("operation", ["h.sin()", "h.tanh()", "(h * w).sin()"])
def test_a_chain_of_100_000_operations(operation: str, backward: bool) -> None:
    code = PROGRAM.format(operation=operation, backward=backward)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
