"""Tests that do not simply agree, by what is to be said of them; run by ``test_verdicts.py``."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Rows(Dataset):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, i: int) -> torch.Tensor:
        return torch.full((2,), float(i))


LOADER = DataLoader(Rows(), batch_size=4, num_workers=1, persistent_workers=True)
LEFT = {"runs": 0}
MODEL = nn.Linear(2, 2)
SHARED = torch.arange(6.0).reshape(2, 3)
ROW = SHARED[1]


def test_finding_of_the_device_only() -> None:
    cell = nn.LSTMCell(3, 4)
    hidden, state = cell(torch.randn(2, 3))  # saved
    state.mul_(0.9)  # written
    hidden.sum().backward()


def test_shared_memory_is_written() -> None:
    array = np.zeros(3, dtype=np.float32)
    x = torch.from_numpy(array)
    w = torch.ones(3, requires_grad=True)
    (w * x).sum().backward()  # not portable
    array += 2
    (w * x).sum().backward()


def test_memory_is_shared_before_it_is_used() -> None:
    array = np.zeros(3, dtype=np.float32)
    x = torch.from_numpy(array)
    array += 2
    w = torch.ones(3, requires_grad=True)
    (w * x).sum().backward()


def test_not_deterministic() -> None:
    w = torch.ones(3, requires_grad=True)
    (w * random.SystemRandom().random()).sum().backward()


def test_depends_on_what_it_left() -> None:
    LEFT["runs"] += 1
    w = torch.ones(3, requires_grad=True)
    (w * LEFT["runs"]).sum().backward()


def test_trains_a_module_of_its_file() -> None:
    with torch.no_grad():
        MODEL.weight.mul_(0.5)
    MODEL(torch.ones(1, 2)).square().sum().backward()
    assert MODEL.weight.is_cpu


def test_views_made_before_stay_views() -> None:
    w = torch.ones(3, requires_grad=True)
    ROW.add_(1)
    (SHARED[1] * w).sum().backward()
    SHARED[1].sub_(1)
    assert ROW.tolist() == [3, 4, 5]


def test_skipped_there() -> None:
    if torch.ones(1).untyped_storage().device.type != "cpu":
        pytest.skip("no such kernel")


def test_raises_there() -> None:
    if torch.ones(1).untyped_storage().device.type != "cpu":
        raise ValueError("odd")  # not portable


def test_out_of_memory_there() -> None:
    if torch.ones(1).untyped_storage().device.type != "cpu":
        raise torch.OutOfMemoryError("standin out of memory")


def test_fails_on_the_cpu_too() -> None:
    assert not torch.ones(1).sum()


@pytest.mark.inplace_safe(parity="never")
def test_not_asked_for() -> None:
    torch.ones(1, requires_grad=True).exp().backward()


def test_integers_and_shapes(inplace) -> None:
    inplace.compare("order", torch.argsort(torch.tensor([3.0, 1.0, 2.0])))
    inplace.compare("empty", torch.zeros(0, 3))
    with pytest.raises(TypeError, match="takes a name and a tensor"):
        inplace.compare("number", 3)


def test_puts_questions_to_the_check(inplace) -> None:
    layer = nn.Linear(2, 2)
    out = layer(torch.ones(1, 2)).sigmoid()
    inplace.check()
    with inplace.frozen(layer):
        out.sum().backward()
    assert inplace.findings == []


def test_one_place_twice() -> None:
    x = torch.zeros(4)
    x[torch.tensor([1, 1, 2])] = torch.tensor([1.0, 2.0, 3.0])  # hazard index_put_


def test_one_place_twice_with_one_value() -> None:
    x = torch.zeros(4, 2)
    x[torch.tensor([1, 1, 2])] = torch.tensor([1.0, 2.0])
    x.index_put_((torch.tensor([0, 0]),), torch.ones(2, 2), accumulate=True)
    x.scatter_(0, torch.tensor([[0, 1], [1, 0]]), torch.tensor([[1.0, 2.0], [3.0, 4.0]]))
    x.index_copy_(0, torch.tensor([3, 3]), torch.ones(2, 2))


def test_scatter_twice() -> None:
    torch.zeros(3).scatter_(0, torch.tensor([0, 0]), torch.tensor([1.0, 2.0]))  # hazard scatter_


def test_copy_twice() -> None:
    torch.zeros(3, 2).index_copy_(0, torch.tensor([2, 2]), torch.eye(2))  # hazard index_copy_


def test_written_through_an_expanded_tensor() -> None:
    torch.zeros(1).expand(3).fill_(2)  # hazard fill_


def away() -> bool:
    return torch.ones(1).untyped_storage().device.type != "cpu"


@pytest.mark.parametrize("loader", [LOADER, DataLoader(Rows(), 4, False, None, None, 2)], ids=["kept", "new"])
def test_workers(loader: DataLoader) -> None:
    w = torch.ones(2, requires_grad=True)
    for batch in loader:
        (w * batch).sum().backward()
    assert loader.num_workers > 0


@pytest.fixture(scope="session")
def weights() -> torch.Tensor:
    w = torch.ones(2, 2, requires_grad=True)
    w.sum().backward()
    return w


@pytest.fixture(scope="session")
def built(weights: torch.Tensor) -> torch.Tensor:
    return (weights * 2).exp()


def test_tensor_of_the_session(weights: torch.Tensor) -> None:
    before = weights.grad
    (weights @ weights).sum().backward()
    torch.optim.SGD([weights], lr=0.1).step()
    assert weights.grad is before


def test_tensor_of_the_session_again(weights: torch.Tensor) -> None:
    # As the first run left it, whatever the runs on the device did: gradients of 1 and 4, one step.
    assert torch.equal(weights.detach(), torch.full((2, 2), 0.5))
    assert weights.grad is not None
    assert weights.grad.tolist() == [[5, 5], [5, 5]]


def test_graph_of_the_session(built: torch.Tensor, weights: torch.Tensor) -> None:
    torch.autograd.grad(built.sum(), weights, retain_graph=True)  # not portable


def test_other_dtypes() -> None:
    w = torch.randn(3, 3, dtype=torch.complex64, requires_grad=True)
    (w @ w.conj()).abs().sum().backward()
    h = torch.randn(3, 3, dtype=torch.float16, requires_grad=True)
    (h @ h).sum().backward()


ERRORS = {
    "memory": RuntimeError("CUDA error: out of memory"),
    "dtype": TypeError("Cannot convert a MPS Tensor to float64 dtype as MPS doesn't support that dtype"),
    "kernel": NotImplementedError("Could not run 'aten::odd' with arguments from the 'Other' backend."),
    "mps": NotImplementedError("The operator 'aten::odd' is not currently implemented for the MPS device."),
    "assert": RuntimeError("STANDIN error: device-side assert triggered"),
    "exit": SystemExit(3),
}


@pytest.mark.parametrize("name", sorted(ERRORS))
def test_error_there(name: str) -> None:
    if away():
        raise ERRORS[name]  # not portable


def test_expected_to_fail_there() -> None:
    if away():
        pytest.xfail("no such kernel")


def test_out_of_real_memory_there() -> None:
    if away():
        torch.empty(1 << 50)
