"""What runs on the stand-in device, on CUDA, and what only CUDA has: settings, graphs, fused kernels."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pytest_inplace import guard
from pytest_inplace.parity.devices import Determined
from tests.integration.support import read_json
from tests.parity.test_hazards import told, wanted

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device here")

ROOT = Path(__file__).parents[2]
PROGRAMS = ROOT / "tests" / "parity"


def compared(program: Path, folder: Path, *options: str) -> dict[str, dict[str, Any]]:
    """One record for each test of a file or folder, run with ``--inplace-parity=cuda`` in its own process."""
    report = folder / "report.json"
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_")}
    environment |= {"PYTHONPATH": str(ROOT), "PYTEST_INPLACE_DEVICE": "cuda"}
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "tests.gpu.plugin",
         str(program), "--inplace-parity=cuda", f"--inplace-json={report}", *options],
        cwd=program.parent if program.is_dir() else ROOT,
        env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert report.exists(), done.stdout + done.stderr
    print(done.stdout[-4000:])
    return {t["nodeid"].rpartition("::")[2]: t for t in read_json(report)["tests"]}


def not_agreeing(found: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return {
        name: [t["parity"]["verdict"], t["parity"]["reason"], t["findings"]]
        for name, t in found.items()
        if t["parity"]["verdict"] != "agrees"
    }


def test_user_styles_agree(tmp_path: Path) -> None:
    # One names the device that torch.cuda.is_available() chooses, in the run on the CPU too.
    found = compared(PROGRAMS / "user_style.py", tmp_path, "-k", "not names_the_cpu")
    assert not_agreeing(found) == {}


def test_rounding_is_no_finding(tmp_path: Path) -> None:
    found = compared(PROGRAMS / "noisy.py", tmp_path)
    assert not_agreeing(found) == {}
    assert sum(t["parity"]["points"] for t in found.values()) > 1000
    assert any(t["parity"]["equal"] < t["parity"]["points"] for t in found.values())


def test_the_example_project_agrees(tmp_path: Path) -> None:
    found = compared(ROOT / "example_project" / "tests", tmp_path)
    assert {n for n, t in found.items() if t["parity"]["verdict"] == "differs"} == set()
    assert len(found) - len(not_agreeing(found)) >= 40  # one shares memory with NumPy, one is meant to fail


def test_a_device_only_finding(tmp_path: Path) -> None:
    found = compared(PROGRAMS / "verdicts.py", tmp_path, "-k", "finding_of_the_device_only")
    assert [f["code"] for t in found.values() for f in t["findings"]] == ["INP302"]


@pytest.mark.parametrize("name", ["hazards.py", "traffic.py"])
def test_hazards_are_told(name: str, tmp_path: Path) -> None:
    compared(PROGRAMS / name, tmp_path)
    assert told(tmp_path / "report.json") == wanted(PROGRAMS / name)


def test_tf32_of_the_project_is_off_in_the_comparison(tmp_path: Path) -> None:
    program = tmp_path / "test_coarse.py"
    program.write_text(
        "import torch\n"
        "torch.set_float32_matmul_precision('high')\n"
        "def test_it():\n"
        "    torch.manual_seed(0)\n"
        "    a, b = torch.randn(256, 512, requires_grad=True), torch.randn(512, 256)\n"
        "    (a @ b).square().sum().backward()\n"
    )
    assert not_agreeing(compared(program, tmp_path)) == {}


def test_tf32_is_seen_where_the_test_itself_turns_it_on(tmp_path: Path) -> None:
    program = tmp_path / "test_coarse.py"
    program.write_text(
        "import torch\n"
        "def test_it():\n"
        "    torch.set_float32_matmul_precision('high')\n"
        "    torch.manual_seed(0)\n"
        "    a, b = torch.randn(256, 512, requires_grad=True), torch.randn(512, 256)\n"
        "    (a @ b).square().sum().backward()\n"
    )
    (record,) = compared(program, tmp_path).values()
    assert record["parity"]["verdict"] == "differs"
    assert record["findings"][0]["divergence"]["operator"] == "aten.mm"


def test_convolutions_repeat_themselves() -> None:
    torch.manual_seed(0)
    x, layer = torch.randn(8, 16, 32, 32, device="cuda"), nn.Conv2d(16, 32, 3, device="cuda")

    def gradient() -> torch.Tensor:
        layer.zero_grad()
        layer(x).square().mean().backward()
        return layer.weight.grad.clone()

    before = torch.backends.cudnn.deterministic, torch.get_float32_matmul_precision()
    with Determined("cuda"):
        assert all(torch.equal(gradient(), gradient()) for _ in range(5))
    assert (torch.backends.cudnn.deterministic, torch.get_float32_matmul_precision()) == before


def steps(count: int) -> None:
    model = nn.Sequential(nn.Linear(64, 64, device="cuda"), nn.GELU(), nn.Linear(64, 8, device="cuda"))
    x = torch.ones(16, 64, device="cuda")
    for _ in range(count):
        model(x).square().mean().backward()


def test_the_check_does_not_wait_for_the_device() -> None:
    steps(1)  # what is loaded with the first kernel may wait
    with guard():
        torch.cuda.set_sync_debug_mode("error")
        try:
            steps(3)
        finally:
            torch.cuda.set_sync_debug_mode("default")


def test_a_graph_can_be_captured_under_the_check() -> None:
    w = torch.ones(64, 64, device="cuda", requires_grad=True)
    x = torch.ones(16, 64, device="cuda")
    with guard():
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):
                (x @ w).exp().mean().backward()
        torch.cuda.current_stream().wait_stream(side)
        w.grad = None
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            (x @ w).exp().mean().backward()
        graph.replay()
    torch.cuda.synchronize()
    assert w.grad is not None
    assert w.grad.isfinite().all()


def mixed(tensor: torch.Tensor) -> torch.Tensor:
    """A digest on the device: each word times an odd number of its place, summed."""
    words = tensor.view(torch.int32).flatten()
    places = torch.arange(words.numel(), device=words.device, dtype=torch.int32)
    return (words * (places * 2654435 + 1)).sum(dtype=torch.int64)


def test_what_a_digest_on_the_device_would_cost() -> None:
    """Prints figures (``-s`` shows them) for ways to see a write to a tensor on the device."""
    ways = {"clone": torch.Tensor.clone, "mixed sum": mixed, "copy to the host": torch.Tensor.cpu}
    if hasattr(torch, "hash_tensor"):
        ways["hash_tensor"] = torch.hash_tensor
    for size in (1 << 12, 1 << 20, 1 << 26):
        tensor = torch.randn(size // 4, device="cuda")
        for name, way in ways.items():
            way(tensor)
            begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            begin.record()
            for _ in range(10):
                way(tensor)
            end.record()
            end.synchronize()
            print(f"{size:>9} bytes, {name}: {begin.elapsed_time(end) * 100:.1f} us")
        assert tensor.isfinite().all()
    changed = tensor.clone()
    changed[[0, 1]] = changed[[1, 0]]
    assert mixed(changed) != mixed(tensor)
