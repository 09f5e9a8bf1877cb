"""Child processes that a test starts are checked as the test is, or counted as not checked."""

from __future__ import annotations

import inspect
import os
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.integration.support import CLEAN, SILENT, VERSION, VERSION_WORDS, Run, function, line_of

Check = Callable[..., Run]

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork, which is quicker than spawn")
IMPORTS = """
import multiprocessing
import os
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
import torch.distributed as dist
import torch.multiprocessing
from torch import nn
fork = multiprocessing.get_context("fork")
"""
PROCESS = """
def run(work):
    process = fork.Process(target=work, name="mine")
    process.start()
    process.join()
    assert process.exitcode == 0
"""
POOL = """
def run(work):
    with fork.Pool(1) as pool:
        pool.apply(work)
"""
EXECUTOR = """
def run(work):
    with ProcessPoolExecutor(1, mp_context=fork) as pool:
        pool.submit(work).result()
"""
GRANDCHILD = """
def between(work):
    process = fork.Process(target=work, name="mine")
    process.start()
    process.join()
def run(work):
    process = fork.Process(target=between, args=(work,))
    process.start()
    process.join()
"""
RANKS = """
def group(rank, folder, body):
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.manual_seed(rank)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=2)
    try:
        body(rank)
    finally:
        dist.destroy_process_group()
def run(body, folder):
    torch.multiprocessing.start_processes(group, (folder, body), nprocs=2, start_method="fork")
"""
WAYS = {"Process": PROCESS, "Pool": POOL, "ProcessPoolExecutor": EXECUTOR, "grandchild": GRANDCHILD}
CALL = "\ndef test_it():\n    run(work)\n"
CALL_IN_GROUP = "\ndef test_it(tmp_path_factory):\n    run(work, tmp_path_factory.mktemp('group'))\n"


@pytest.mark.parametrize("way", WAYS)
def test_a_silent_write_is_found_with_its_line(check: Check, pytester: pytest.Pytester, way: str) -> None:
    run = check(IMPORTS + WAYS[way] + function("work", SILENT) + CALL)
    run.outcomes(failed=1)
    finding = run.finding()
    path = pytester.path / "test_it.py"
    assert (finding["code"], finding["state"], finding["replayed"]) == ("INP102", "confirmed", True)
    assert finding["modified"]["path"] == "test_it.py"
    assert finding["modified"]["line"] == line_of(path, "# the write")
    assert finding["used"]["line"] == line_of(path, "# the use")
    assert finding["gradients"][0]["max_rel"] == pytest.approx(1.0)
    assert run.record()["coverage"]["saved"] == 1
    assert run.record()["coverage"]["not_checked"] == {}
    if way in ("Process", "grandchild"):
        assert finding["process"] == "mine"
        assert "in the child process: mine" in run.text


@pytest.mark.parametrize("way", WAYS)
def test_a_right_program_stays_clean_and_is_counted(check: Check, way: str) -> None:
    run = check(IMPORTS + WAYS[way] + function("work", CLEAN) + CALL)
    run.outcomes(passed=1)
    assert run.record()["coverage"] == {
        "saved": 1,
        "content_checked": 1,
        "version_only": 0,
        "not_checked": {},
    }


def test_a_new_interpreter_is_checked_too(check: Check, pytester: pytest.Pytester) -> None:
    """With spawn nothing of the plugin is in the child until the process itself brings it."""
    body = function("work", SILENT, "rank").replace("h.data.mul_(2)", "h.data.mul_(1 + rank)")
    call = "\ndef test_it():\n    torch.multiprocessing.spawn(work, nprocs=2)\n"
    run = check(IMPORTS + body + call)
    run.outcomes(failed=1)
    finding = run.finding()
    assert finding["process"] == "rank 1"
    assert finding["modified"]["line"] == line_of(pytester.path / "test_it.py", "# the write")
    assert run.record()["coverage"]["saved"] == 2


def test_a_pool_that_imports_torch_late_is_checked(check: Check) -> None:
    call = """
def test_it():
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.apply(work)
"""
    run = check(IMPORTS + function("work", SILENT) + call, "--inplace-replay=never")
    assert run.codes() == ["INP102"]


def test_ranks_with_the_same_defect_make_one_finding(check: Check) -> None:
    run = check(IMPORTS + RANKS + function("work", SILENT, "rank") + CALL_IN_GROUP)
    assert run.finding()["process"] == "rank 0, rank 1"


def test_without_a_second_run_the_finding_says_why(check: Check) -> None:
    run = check(IMPORTS + PROCESS + function("work", SILENT) + CALL, "--inplace-replay=never")
    finding = run.finding()
    assert (finding["code"], finding["replayed"], finding["modified"]) == ("INP102", False, None)
    assert finding["note"] == "not replayed: off by --inplace-replay=never"


def test_a_harmless_write_is_cleared_by_the_second_run(check: Check) -> None:
    body = (
        "h = torch.ones(3, requires_grad=True).relu()\nh.data.mul_(2)  # still positive\nh.sum().backward()"
    )
    run = check(IMPORTS + PROCESS + function("work", body) + CALL)
    run.outcomes(passed=1)


def test_a_finding_of_the_first_run_only_stands(check: Check) -> None:
    body = "h = torch.ones(3, requires_grad=True).exp()\nif first:\n    h.data.mul_(2)\nh.sum().backward()"
    call = "\ndef test_it():\n    global first\n    run(work)\n    first = False\n"
    run = check(IMPORTS + PROCESS + "first = True\n" + function("work", body) + call)
    finding = run.finding()
    assert not finding["replayed"]
    assert "did not show it again" in finding["note"]


def test_a_version_error_that_the_test_expects_is_clean(check: Check) -> None:
    call = f"""
def test_it():
    with pytest.raises(torch.multiprocessing.ProcessRaisedException, match="{VERSION_WORDS}"):
        torch.multiprocessing.start_processes(work, nprocs=1, start_method="fork")
"""
    run = check(IMPORTS + function("work", VERSION, "rank") + call)
    run.outcomes(passed=1)
    assert run.verdict() == "clean"


def test_a_version_error_is_explained(check: Check, pytester: pytest.Pytester) -> None:
    call = """
def test_it():
    torch.multiprocessing.start_processes(work, nprocs=1, start_method="fork")
"""
    run = check(IMPORTS + function("work", VERSION, "rank") + call)
    run.outcomes(failed=1)
    finding = run.finding()
    assert (finding["code"], finding["process"]) == ("INP101", "rank 0")
    assert finding["modified"]["line"] == line_of(pytester.path / "test_it.py", "# the write")
    assert "ProcessRaisedException" in run.text


def test_a_version_error_that_the_child_handles_is_clean(check: Check) -> None:
    body = VERSION.replace("h.sum().backward()", "with pytest.raises(RuntimeError):\n    h.sum().backward()")
    run = check(IMPORTS + PROCESS + function("work", body) + CALL)
    run.outcomes(passed=1)


def test_allow_and_latent_hold_for_children(check: Check) -> None:
    mark = '@pytest.mark.inplace_safe(allow=["INP102"], reason="r")'
    latent = "h = torch.ones(3, requires_grad=True).exp()\nh.add_(1)\n"
    source = IMPORTS + PROCESS + function("work", SILENT) + function("late", latent)
    source += function("test_allowed", "run(work)", before=mark) + function("test_latent", "run(late)")
    run = check(source)
    run.outcomes(passed=1, failed=1)
    assert (run.finding("test_latent")["code"], run.finding("test_latent")["state"]) == ("INP101", "latent")
    run = check(source, "--inplace-latent=ignore")
    run.outcomes(passed=2)


def test_ddp_that_is_right_is_clean(check: Check) -> None:
    body = """
layers = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))
model = nn.parallel.DistributedDataParallel(layers)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(6, 4)).square().mean().backward()
    optimizer.step()
"""
    run = check(IMPORTS + RANKS + function("work", body, "rank") + CALL_IN_GROUP)
    run.outcomes(passed=1)
    assert run.record()["coverage"]["saved"] > 30
    assert run.record()["coverage"]["not_checked"] == {}


@pytest.mark.skipif(
    "init_sync" not in inspect.signature(torch.nn.parallel.DistributedDataParallel).parameters,
    reason="this torch has no DistributedDataParallel(init_sync=False)",
)
def test_ddps_silent_broadcast_of_buffers_is_found(check: Check) -> None:
    """The second forward pass overwrites on rank 1 what the first one's backward will use, without a word."""
    body = """
norm = nn.BatchNorm1d(4, affine=True).eval()
norm.running_var.fill_(1.0 + 3 * rank)
model = nn.parallel.DistributedDataParallel(norm, init_sync=False)
first = model.module(torch.randn(6, 4))
second = model(torch.randn(6, 4))
(first * torch.arange(4.0)).sum().backward()
"""
    run = check(IMPORTS + RANKS + function("work", body, "rank") + CALL_IN_GROUP)
    run.outcomes(failed=1)
    finding = run.finding()
    assert (finding["code"], finding["process"]) == ("INP102", "rank 1")
    assert finding["version"]["saved"] == finding["version"]["now"]
    assert "second = model(" in finding["modified"]["source"]
    assert finding["gradients"]


def test_fsdp_that_is_right_is_clean(check: Check) -> None:
    body = """
from torch.distributed.fsdp import fully_shard
model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))
for layer in model:
    if list(layer.parameters()):
        fully_shard(layer)
fully_shard(model)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for _ in range(3):
    optimizer.zero_grad()
    model(torch.randn(6, 4)).square().mean().backward()
    optimizer.step()
"""
    pytest.importorskip("torch.distributed.fsdp", reason="no FSDP in this torch")
    from torch.distributed import fsdp

    if not hasattr(fsdp, "fully_shard"):
        pytest.skip("this torch has no fully_shard")
    run = check(IMPORTS + RANKS + function("work", body, "rank") + CALL_IN_GROUP)
    run.outcomes(passed=1)
    assert run.record()["coverage"]["saved"] > 0


def test_data_loader_workers_are_left_in_peace(check: Check) -> None:
    body = """
data = torch.utils.data.TensorDataset(torch.arange(12.0))
loader = torch.utils.data.DataLoader(data, batch_size=4, num_workers=2, multiprocessing_context="fork")
w = torch.ones(4, requires_grad=True)
for (batch,) in loader:
    (w.exp() * batch).sum().backward()
"""
    run = check(IMPORTS + function("test_it", body))
    run.outcomes(passed=1)
    assert run.record()["coverage"]["not_checked"] == {}


LEFT = """
import gc, os, sys
import torch
from torch.utils.data import DataLoader

def only_the_parent(*args, **kwargs):
    raise AssertionError("the heap of a worker was looked through, which copies it")

class Data:
    def __len__(self):
        return 4
    def __getitem__(self, i):
        gc.get_objects = only_the_parent
        return torch.tensor(float(len(loaded())))

def loaded():
    return [name for name in sys.modules if name.startswith("pytest_inplace.")]

def test_it():
    before = len(loaded())
    loader = DataLoader(Data(), num_workers=2, multiprocessing_context="fork")
    assert [batch.item() for batch in loader] == [before] * 4
"""


def test_a_process_that_saves_nothing_costs_nearly_nothing(pytester: pytest.Pytester) -> None:
    """It imports nothing for the check, and does not look for what it never saved."""
    pytester.makepyfile(LEFT)
    run = pytester.runpytest_subprocess("--inplace-check", "-p", "no:randomly")
    run.assert_outcomes(passed=1)
    assert "not checked" not in run.stdout.str()


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (
            "pid = os.fork()\nif not pid:\n    os._exit(0)\nos.waitpid(pid, 0)",
            "a process forked by os.fork()",
        ),
        (
            "subprocess.run([sys.executable, '-c', '1'], check=True)",
            "a Python program started as a subprocess",
        ),
        (
            "process = fork.Process(target=time.sleep, args=(60,))\nprocess.start()\n"
            "process.kill()\nprocess.join()",
            "a child process that was killed, or still ran when the test ended",
        ),
    ],
    ids=["fork", "subprocess", "killed"],
)
def test_what_is_not_checked_is_counted(check: Check, body: str, reason: str) -> None:
    run = check(IMPORTS + function("test_it", body))
    run.outcomes(passed=1)
    assert run.record()["coverage"]["not_checked"] == {reason: 1}


def test_other_programs_are_not_counted(check: Check) -> None:
    run = check(IMPORTS + function("test_it", "subprocess.run(['true'], check=True)"))
    assert run.record()["coverage"]["not_checked"] == {}


def test_nothing_is_left_behind(check: Check, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    start, spawn = __import__("multiprocessing").Process.start, __import__("subprocess").Popen.__init__
    check(IMPORTS + PROCESS + function("work", SILENT) + CALL)
    assert list(tmp_path.glob("pytest-inplace-*")) == []
    assert __import__("multiprocessing").Process.start is start
    assert __import__("subprocess").Popen.__init__ is spawn
