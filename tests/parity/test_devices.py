"""Settings of CUDA that a run changes, and operators that the CPU cannot run; no such device is needed."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
import torch

from pytest_inplace.parity import operators
from pytest_inplace.parity.devices import Determined

# Settings of the process: each program has one of its own.
PROGRAM = """
import torch
from pytest_inplace.parity.devices import Determined

backends = torch.backends
{before}
parts = (backends.cudnn.conv, backends.cudnn.rnn, backends.cuda.matmul)
precisions = lambda: [part.fp32_precision for part in parts]
others = lambda: (backends.cudnn.deterministic, backends.cudnn.benchmark,
                  backends.cuda.matmul.allow_fp16_reduced_precision_reduction,
                  backends.cuda.matmul.allow_bf16_reduced_precision_reduction)
kept = precisions(), others()
with Determined("cuda"):
    assert "tf32" not in precisions() and "bf16" not in precisions(), precisions()
    assert others() == (True, False, False, False)
assert (precisions(), others()) == kept, (precisions(), others(), kept)
print("as before")
"""


@pytest.mark.skipif(not hasattr(torch.backends.cudnn, "conv"), reason="no settings for each operator")
@pytest.mark.parametrize(
    "before",
    [
        "",
        "backends.cuda.matmul.allow_tf32 = True; backends.cudnn.benchmark = True",
        "torch.set_float32_matmul_precision('medium')",
        "backends.cudnn.conv.fp32_precision = 'ieee'; backends.cuda.matmul.fp32_precision = 'tf32'",
    ],
)
def test_settings_are_put_back(before: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(before=before)], capture_output=True, text=True, check=False
    )
    assert done.stdout == "as before\n", done.stderr


def test_other_devices_have_no_settings() -> None:
    before = torch.backends.cudnn.deterministic
    with Determined("mps"):
        assert torch.backends.cudnn.deterministic is before


@pytest.mark.parametrize(
    ("operator", "kind"),
    [
        (torch.ops.aten.bernoulli_.float, "random"),
        (torch.ops.aten.native_dropout.default, "random"),
        (torch.ops.aten.randn.default, "random"),
        (torch.ops.aten._scaled_dot_product_flash_attention.default, "compute"),
        (torch.ops.aten._scaled_dot_product_efficient_attention.default, "compute"),
        (torch.ops.aten._cudnn_rnn.default, "compute"),
        (torch.ops.aten.mm.default, "compute"),
        (torch.ops.aten.zeros.default, "make"),
    ],
)
def test_what_the_cpu_cannot_run_is_not_sent_there(operator: Any, kind: str) -> None:
    assert operators.kind(operator) == kind
