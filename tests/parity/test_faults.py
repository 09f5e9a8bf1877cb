"""Each fault of the device is found, with the operator and the line of the user's code named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.integration.support import read_json
from tests.standin import device
from tests.standin.process import run_tests

pytestmark = pytest.mark.skipif(device.unavailable() is not None, reason=str(device.unavailable()))

SOURCE = Path(__file__).with_name("faulty.py")
OPERATORS = {
    "relu_backward": ("aten.threshold_backward", "backward"),
    "gelu_constant": ("aten.gelu", "forward"),
    "tanh_backward": ("aten.tanh_backward", "backward"),
    "softmax": ("aten._softmax", "forward"),
    "writes_its_input": ("aten.sigmoid", "forward"),
    "conv_backward": ("aten.convolution_backward", "backward"),
    "batch_norm_backward": ("aten.native_batch_norm_backward", "backward"),
    "nondeterministic_scatter": ("aten.scatter.src", "forward"),
    "coarse_matmul": ("aten.mm", "forward"),
    "max_pool_backward": ("aten.max_pool2d_with_indices_backward", "backward"),
    "embedding_backward": ("aten.embedding_dense_backward", "backward"),
}


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    folder = tmp_path_factory.mktemp("faults")
    report = folder / "report.json"
    outcomes = run_tests(SOURCE, folder, "--inplace-parity=standin", f"--inplace-json={report}")
    assert outcomes == {f"test_{name}": "failure" for name in OPERATORS} | {"test_without_a_fault": "passed"}
    return {t["nodeid"].partition("::test_")[2]: t for t in read_json(report)["tests"]}


@pytest.mark.parametrize("name", sorted(OPERATORS))
def test_the_fault_is_found_and_its_operator_named(name: str, records: dict[str, dict[str, Any]]) -> None:
    record = records[name]
    assert record["parity"]["verdict"] == "differs"
    finding = record["findings"][0]
    assert finding["code"] == "INP301"
    operator, phase = OPERATORS[name]
    assert (finding["divergence"]["operator"], finding["divergence"]["phase"]) == (operator, phase)
    assert finding["saved"]["line"] == line_of(f"test_{name}")
    assert finding["values"]["changed"] > 0


def test_what_differs_from_run_to_run_is_said_to(records: dict[str, dict[str, Any]]) -> None:
    unsteady = {name for name in OPERATORS if records[name]["parity"]["nondeterministic"]}
    assert unsteady == {"nondeterministic_scatter"}
    assert records["nondeterministic_scatter"]["findings"][0]["divergence"]["deterministic"] is False


def test_a_kernel_that_writes_its_input_is_said_to(records: dict[str, dict[str, Any]]) -> None:
    finding = records["writes_its_input"]["findings"][0]
    assert finding["divergence"]["output"] == "writes to its input f32[5, 6]"


def test_without_a_fault_all_values_agree(records: dict[str, dict[str, Any]]) -> None:
    parity = records["without_a_fault"]["parity"]
    assert parity["verdict"] == "agrees"
    assert parity["points"] > 30


def line_of(function: str) -> int:
    lines = SOURCE.read_text(encoding="utf-8").splitlines()
    begin = lines.index(f"def {function}() -> None:")
    return next(i + 1 for i in range(begin, len(lines)) if lines[i].endswith("# here"))
