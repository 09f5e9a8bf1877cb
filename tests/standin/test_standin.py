"""The stand-in device behaves as a device does, and each fault really makes it wrong."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.standin import device
from tests.standin.process import run_tests

pytestmark = pytest.mark.skipif(device.unavailable() is not None, reason=str(device.unavailable()))
ROOT = Path(__file__).parents[2]


# Views, complex numbers, other results than tensors, several results, fused kernels, random numbers.
OPERATORS = (
    "^(add|addmm|atan2|cat|cholesky|complex|cummax|diag|einsum|expand|fft.(fft|ihfft)|gather|index_put|kthvalue"
    "|linalg.(eig|qr)|masked_scatter|max_reduction.*|nn.functional.(conv2d|dropout|gelu|layer_norm|nll_loss)"
    "|polar|put|scatter|select|std_mean|svd|tensor_split|to|topk|unfold|view_as_real|where)$"
)


def test_it_behaves_as_a_device_does(tmp_path: Path) -> None:
    outcomes = run_tests(ROOT / "tests/standin/checks.py", tmp_path)
    assert len(outcomes) == 20
    assert set(outcomes.values()) == {"passed"}, outcomes


def test_operators_of_the_database_agree() -> None:
    # All of them: python -m tests.standin.operators
    done = subprocess.run(
        [sys.executable, "-m", "tests.standin.operators", "--ops", OPERATORS],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert re.search(r"^(\d+) operators: \1 agrees$", done.stdout, re.MULTILINE), done.stdout + done.stderr
    assert int(done.stdout.partition(" ")[0]) >= 30
