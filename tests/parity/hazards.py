"""What devices leave undefined, in tests that name none; see ``test_hazards.py``.

Each line that ends in ``# hazard OPERATOR`` is to be told, and no other.
"""

from __future__ import annotations

import pytest
import torch

T = torch.tensor


def test_index_put() -> None:
    x, y = torch.zeros(4), torch.zeros(3, 4)
    x[T([1, 1, 2])] = T([1.0, 2.0, 3.0])  # hazard index_put_
    x[T([-1, 3])] = T([1.0, 2.0])  # hazard index_put_
    y[:, T([0, -4])] = torch.arange(6.0).reshape(3, 2)  # hazard index_put_
    y[T([[0], [1]]), T([2, 2])] = torch.arange(4.0).reshape(2, 2)  # hazard index_put_
    y[T([True, False, True])] = torch.arange(8.0).reshape(2, 4)
    y[y > 1] = torch.arange(float((y > 1).sum()))
    y[T([True, False, True]), T([2, 2])] = T([1.0, 2.0])
    x[T([1, 1, 2])] = 5.0
    x[T([1, 1, 2])] = T([2.0, 2.0, 3.0])
    x[T([1, 1])] = T([float("nan"), float("nan")])
    x.index_put_((T([0, 0]),), T([1.0, 2.0]), accumulate=True)
    x.index_put((T([0, 0]),), T([1.0, 2.0]))  # hazard index_put


def test_along_a_dimension() -> None:
    x = torch.zeros(3, 2)
    x.scatter_(0, T([[0, 1], [0, 0]]), T([[1.0, 2.0], [3.0, 4.0]]))  # hazard scatter_
    x.scatter_(0, T([[0, 1], [1, 0]]), T([[1.0, 2.0], [3.0, 4.0]]))
    x.scatter_(0, T([[0, 1], [0, 0]]), 2.0)
    x.scatter_(0, T([[0, 1], [0, 0]]), T([[1.0, 2.0], [3.0, 4.0]]), reduce="add")
    x.scatter_add_(0, T([[0, 0]]), T([[1.0, 2.0]]))
    x.scatter_reduce_(0, T([[0, 0], [0, 0]]), torch.ones(2, 2), "amax")
    x.index_copy_(0, T([2, 2]), torch.eye(2))  # hazard index_copy_
    x.index_copy_(0, T([2, 2]), torch.ones(2, 2))
    x.index_add_(0, T([2, 2]), torch.eye(2))
    x.index_fill_(0, T([2, 2]), 3.0)


def test_flat() -> None:
    x = torch.zeros(2, 2)
    x.put_(T([0, -4]), T([1.0, 2.0]))  # hazard put_
    x.put_(T([0, -4]), T([1.0, 2.0]), accumulate=True)
    x.put_(T([0, 1]), T([1.0, 2.0]))
    x.masked_scatter_(T([[True, False], [True, True]]), torch.arange(4.0))
    x.masked_fill_(T([[True], [False]]), 2)


def test_overlapping() -> None:
    torch.zeros(1).expand(3).fill_(2)  # hazard fill_
    torch.zeros(5).unfold(0, 3, 1).mul_(2)  # hazard mul_
    torch.zeros(5).as_strided((2, 2), (1, 1)).add_(1)  # hazard add_
    torch.zeros(6).unfold(0, 3, 3).mul_(2)
    torch.zeros(4, 4).t()[::2].add_(1)
    torch.zeros(3, 1).expand(3, 1).add_(1)


def test_a_pinned_buffer() -> None:
    if not torch.accelerator.is_available():
        pytest.skip("there is no pinned memory without a device")
    buffer, w = torch.empty(3, pin_memory=True), torch.ones(3, requires_grad=True)
    assert buffer.is_pinned()
    for i in range(2):
        buffer.fill_(i)  # hazard fill_
        (w * buffer.to(w.device, non_blocking=True)).sum().backward()


def test_a_pinned_buffer_that_is_awaited() -> None:
    if not torch.accelerator.is_available():
        pytest.skip("there is no pinned memory without a device")
    buffer, w = torch.zeros(3).pin_memory(), torch.ones(3, requires_grad=True)
    for i in range(2):
        buffer.fill_(i)
        loss = (w * buffer.to(w.device, non_blocking=True)).sum()
        loss.backward()
        loss.item()
