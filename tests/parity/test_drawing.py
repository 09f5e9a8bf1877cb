"""Fused kernels that would draw random numbers of their own are kept out of a placed run."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.standin import device

pytestmark = pytest.mark.skipif(device.unavailable() is not None, reason=str(device.unavailable()))

ROOT = Path(__file__).parents[2]
PROGRAM = """
import torch
from torch import nn
from torch.nn import functional as F
from tests.standin import device

device.load()
from pytest_inplace.parity.placement import Placement

# What the settings are is seen where the random numbers are drawn.
seen = []
draw = Placement._random
def drawing(self, func, args, kwargs):
    if "bernoulli" in str(func) or "dropout" in str(func):
        seen.append((torch.backends.cuda.flash_sdp_enabled(), torch.backends.cudnn.enabled))
    return draw(self, func, args, kwargs)
Placement._random = drawing

q = torch.randn(2, 5, 8)
PROGRAMS = {
    "attention": lambda: F.scaled_dot_product_attention(q, q, q, dropout_p=0.3),
    "heads": lambda: nn.MultiheadAttention(8, 2, dropout=0.3, batch_first=True)(q, q, q, need_weights=False),
    "recurrent": lambda: nn.LSTM(8, 4, 2, dropout=0.3)(q),
    "other": lambda: F.dropout(q, 0.3),
}
with Placement("standin"):
    for name, program in PROGRAMS.items():
        program()
        print(name, *sorted(set(seen)))
        seen.clear()
print(torch.backends.cuda.flash_sdp_enabled(), torch.backends.cudnn.enabled)
"""


def test_others_take_their_place() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == [
        "attention (False, True)",
        "heads (False, True)",
        "recurrent (True, False)",
        "other (True, True)",
        "True True",
    ], done.stderr
