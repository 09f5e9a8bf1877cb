"""How many of the example project's defects get a proved change: some always, all of them in a long run."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("sklearn")
pytest.importorskip("libcst")

EXAMPLE = Path(__file__).parent.parent / "example_project"
DEFECTS = [d["nodeid"] for d in json.loads((EXAMPLE / "expected_findings.json").read_text("utf-8"))]
QUICK = (
    "activation_logging", "critic_clipping", "embedding_normalise", "feature_centering", "gan_fused_step",
    "matmul_fill", "residual_skip", "tied_embedding_renorm",
)  # fmt: skip
UNPROVED = {
    # Not differentiated, refused at the write, or not run: no gradients to compare.
    "manual_sgd", "margin_report", "qkv_scale", "row_centering", "stacked_recurrence",
    # It takes another buffer for each batch.
    "staging_refill",
}  # fmt: skip


def proved(root: Path, names: tuple[str, ...], *options: str) -> set[str]:
    """Those of the test files for whose defect the run shows a proved change."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTEST_")}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--inplace-check", *options, "-p", "no:cacheprovider",
         *(f"tests_with_defects/test_{name}.py" for name in names)],
        cwd=root, env={**environment, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode in (0, 1), done.stdout + done.stderr
    return set(re.findall(r"^\[\d+/\d+\] \S*test_(\w+)\.py:\d+: INP\d+: proved: ", done.stdout, re.M))


def test_at_least_eight_are_proved_and_mended_by_it(tmp_path: Path) -> None:
    root = tmp_path / "example"
    shutil.copytree(EXAMPLE, root, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    assert proved(root, QUICK, "--inplace-apply") == set(QUICK)
    # With the changes applied nothing is left to find.
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--inplace-check", "-p", "no:cacheprovider",
         *(f"tests_with_defects/test_{name}.py" for name in QUICK)],
        cwd=root, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


@pytest.mark.skipif(not os.environ.get("PYTEST_INPLACE_EXHAUSTIVE"), reason="takes minutes")
def test_all_others_but_these_are_proved() -> None:
    names = tuple(re.sub(r".*test_(\w+)\.py::.*", r"\1", nodeid) for nodeid in DEFECTS)
    assert proved(EXAMPLE, names, "--inplace-suggest") == set(names) - UNPROVED
