"""What makes the stand-in a true one; collected in a process of its own by ``test_standin.py``."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable

import pytest
import torch
from torch import nn

from pytest_inplace import guard

DEVICE = "standin"
MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 4), nn.LayerNorm(4)), (5, 6)),
    "conv": (
        lambda: nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.SiLU(), nn.MaxPool2d(2),
                              nn.ConvTranspose2d(4, 2, 2, stride=2)),
        (2, 3, 8, 8),
    ),
    "conv1d": (lambda: nn.Sequential(nn.Conv1d(3, 4, 3), nn.GroupNorm(2, 4), nn.LeakyReLU()), (2, 3, 9)),
    "lstm": (lambda: nn.LSTM(6, 7, 2, batch_first=True), (3, 5, 6)),
    "gru": (lambda: nn.GRU(6, 7, bidirectional=True), (3, 5, 6)),
    "rnn": (lambda: nn.RNN(6, 7), (3, 5, 6)),
    "transformer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0), (3, 5, 8)),
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(MODELS))
def test_model_agrees_with_the_cpu(name: str) -> None:
    make, shape = MODELS[name]
    torch.manual_seed(0)
    here = make()
    there = copy.deepcopy(here).to(DEVICE)
    x = torch.randn(shape, requires_grad=True)
    y = x.detach().to(DEVICE).requires_grad_()
    for model, inputs in ((here, x), (there, y)):
        out = model(inputs)
        (out[0] if isinstance(out, tuple) else out).square().sum().backward()
    pairs = [
        (x.grad, y.grad),
        *((p.grad, q.grad) for p, q in zip(here.parameters(), there.parameters(), strict=True)),
    ]
    for right, got in pairs:
        assert got.device.type == DEVICE
        torch.testing.assert_close(got.cpu(), right, rtol=1e-4, atol=1e-4)
    optimizer = torch.optim.SGD(there.parameters(), lr=0.1, momentum=0.9)
    optimizer.step()
    stream = io.BytesIO()
    torch.save(copy.deepcopy(there).state_dict(), stream)
    stream.seek(0)
    loaded = torch.load(stream)
    for key, value in there.state_dict().items():
        assert loaded[key].device.type == DEVICE
        assert torch.equal(loaded[key], value)


def test_a_version_error_is_raised() -> None:
    w = torch.ones(3, device=DEVICE, requires_grad=True)
    h = w.exp()
    h.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        h.sum().backward()


def test_views_share_memory_and_version() -> None:
    x = torch.zeros(4, device=DEVICE)
    x.view(2, 2).t()[0].add_(1)
    assert x.tolist() == [1, 0, 1, 0]
    assert x._version == 1
    assert x.view(2, 2)._base is x


def test_hooks_run_and_errors_in_them_arrive() -> None:
    w = torch.ones(3, device=DEVICE, requires_grad=True)
    seen = []
    w.register_hook(lambda g: seen.append(g.device.type))
    (w * 2).sum().backward()
    assert seen == [DEVICE]

    def stop(grad: torch.Tensor) -> None:
        raise ValueError("from a hook")

    v = torch.ones(3, device=DEVICE, requires_grad=True)
    v.register_hook(stop)
    with pytest.raises(ValueError, match="from a hook"):
        (v * 2).sum().backward()


def test_saved_tensor_hooks_see_device_tensors() -> None:
    w = torch.ones(3, device=DEVICE, requires_grad=True)
    packed = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: packed.append(t.device.type) or t, lambda t: t):
        w.exp().sum().backward()
    assert packed == [DEVICE]


def test_backward_runs_on_a_thread_without_python_frames() -> None:
    w = torch.ones(3, device=DEVICE, requires_grad=True)
    with guard():
        (grad,) = torch.autograd.grad((w**3).sum(), w, create_graph=True)
        grad.norm().backward()
    assert w.grad is not None


def test_tensors_of_two_devices_do_not_mix() -> None:
    with pytest.raises(RuntimeError, match="Expected all tensors to be on the same device"):
        torch.ones(3, device=DEVICE) + torch.ones(3)
    assert (torch.ones(3, device=DEVICE) + torch.tensor(1.0)).tolist() == [2, 2, 2]  # a number is allowed


def test_random_numbers_are_its_own() -> None:
    torch.manual_seed(0)
    first = torch.rand(4, device=DEVICE)
    torch.manual_seed(0)
    assert torch.equal(first, torch.rand(4, device=DEVICE))
    torch.manual_seed(0)
    assert not torch.equal(first.cpu(), torch.rand(4))
    generator = torch.Generator(DEVICE)
    generator.manual_seed(3)
    assert torch.rand(2, device=DEVICE, generator=generator).device.type == DEVICE


def test_data_moves_a_parameter_there() -> None:
    p = nn.Parameter(torch.ones(3))
    p.data = p.data.to(DEVICE)
    (p * 2).sum().backward()
    assert p.grad is not None
    assert p.grad.device.type == DEVICE


def test_kernels_that_resize_what_they_write() -> None:
    out = torch.empty(0, device=DEVICE)
    torch.add(torch.ones(3, device=DEVICE), 1, out=out)
    assert out.tolist() == [2, 2, 2]
    x = torch.arange(3.0, device=DEVICE)
    x.resize_(5)
    assert x[:3].tolist() == [0, 1, 2]
    assert torch.nonzero(torch.tensor([0, 1, 1], device=DEVICE)).tolist() == [[1], [2]]


def test_streams_are_told_apart() -> None:
    side = torch.Stream(device=DEVICE)
    before = torch.accelerator.current_stream()
    with side:
        assert torch.accelerator.current_stream().stream_id == side.stream_id != before.stream_id
        w = torch.ones(3, device=DEVICE, requires_grad=True)
        w.exp().sum().backward()
    assert torch.accelerator.current_stream().stream_id == before.stream_id
    event = torch.Event(device=DEVICE)
    event.record()
    event.synchronize()
    assert event.query()


def test_pinned_memory() -> None:
    x = torch.ones(4)
    assert not x.is_pinned()
    assert x.pin_memory()[1:].is_pinned()
    assert torch.ones(2, device=DEVICE).to("cpu", non_blocking=True).is_pinned()


def test_reads_of_the_host_are_counted() -> None:
    x = torch.ones(3, device=DEVICE)
    before = torch.standin.reads()
    x.add_(1).sum().item()
    x.cpu()
    assert torch.standin.reads() == before + 2


def test_the_check_does_not_wait_for_the_device() -> None:
    layer = nn.Linear(4, 4, device=DEVICE)
    x = torch.ones(2, 4, device=DEVICE)
    with guard() as report:
        before = torch.standin.reads()
        for _ in range(3):
            layer(x).sigmoid().square().sum().backward()
        assert torch.standin.reads() == before
    assert report.findings == []
