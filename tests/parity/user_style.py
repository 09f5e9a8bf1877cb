"""Tests as users write them, in many styles; none names another device. Run by ``test_user_style.py``."""

from __future__ import annotations

import copy
import io
import pickle
import unittest
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, random_split

TABLE = torch.linspace(-1, 1, 12).reshape(3, 4)
WEIGHT = torch.full((4, 2), 0.5, requires_grad=True)


@pytest.fixture(scope="module")
def encoder() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 4))


@pytest.fixture
def batch() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(8, 4), torch.randint(0, 3, (8,))


def test_fixture_and_optimizer(batch: tuple[torch.Tensor, torch.Tensor]) -> None:
    x, y = batch
    model = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, weight_decay=0.1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 5)
    losses = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] + 1


def test_module_level_tensors() -> None:
    loss = (TABLE @ WEIGHT).sin().sum()
    (grad,) = torch.autograd.grad(loss, WEIGHT)
    assert grad.shape == WEIGHT.shape
    assert TABLE.device == torch.device("cpu")


def test_module_scoped_fixture(encoder: nn.Module) -> None:
    encoder.zero_grad()
    encoder(torch.ones(2, 4)).sum().backward()
    with torch.no_grad():
        for p in encoder.parameters():
            p -= 0.1 * p.grad


def test_module_scoped_fixture_again(encoder: nn.Module) -> None:
    encoder.zero_grad()
    encoder(torch.randn(2, 4)).square().sum().backward()


def test_names_the_cpu() -> None:
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = nn.Linear(3, 2).to(device)
    x = torch.zeros(2, 3, device=torch.device("cpu")).to(device, torch.float32)
    out = model(x + torch.eye(3, device="cpu")[:2])
    assert out.device.type == "cpu"
    assert not out.is_cuda
    out.cpu().sum().backward()
    assert next(model.parameters()).grad.get_device() == -1


def test_numpy_in_and_out() -> None:
    data = np.random.default_rng(0).normal(size=(6, 3)).astype(np.float32)
    x = torch.from_numpy(data)
    w = torch.tensor(np.ones((3, 2), dtype=np.float32), requires_grad=True)
    out = torch.as_tensor(data) @ w + torch.asarray(data[:, :2])
    (out.sum() + x.sum()).backward()
    np.testing.assert_allclose(out.detach().numpy(), data @ np.ones((3, 2)) + data[:, :2], rtol=1e-5)
    assert np.asarray(w.detach()).shape == (3, 2)


class Squares(Dataset):
    def __len__(self) -> int:
        return 10

    def __getitem__(self, i: int) -> dict[str, object]:
        return {"x": np.full(4, i, dtype=np.float32), "y": torch.tensor([float(i * i)]), "name": str(i)}


@pytest.mark.parametrize("workers", [0, 2])
def test_data_loader(workers: int) -> None:
    model = nn.Linear(4, 1)
    total = 0
    for item in DataLoader(Squares(), batch_size=3, shuffle=True, num_workers=workers):
        F.mse_loss(model(item["x"]), item["y"]).backward()
        total += len(item["name"])
    assert total == 10


class Stream(IterableDataset):
    def __iter__(self):
        yield from torch.arange(6.0).split(2)


def test_iterable_dataset_and_split() -> None:
    w = torch.ones(2, requires_grad=True)
    for x in DataLoader(Stream(), batch_size=None):
        (w * x).sum().backward()
    train, rest = random_split(TensorDataset(torch.randn(10, 2)), [7, 3])
    assert len(train) + len(rest) == 10
    (w * torch.stack([x for (x,) in train]).mean(0)).sum().backward()


def test_save_and_load(tmp_path: Path) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    model(torch.randn(4, 3)).sum().backward()
    torch.save(model.state_dict(), tmp_path / "model.pt")
    other = nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3))
    other.load_state_dict(torch.load(tmp_path / "model.pt", map_location="cpu", weights_only=True))
    again = pickle.loads(pickle.dumps(other))
    x = torch.randn(5, 3)
    torch.testing.assert_close(model.eval()(x), again.eval()(x))
    again(x).square().sum().backward()


def test_deep_copy_and_moving_average() -> None:
    model = nn.Linear(3, 1)
    average = copy.deepcopy(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, nesterov=True)
    for _ in range(3):
        optimizer.zero_grad()
        (model(torch.randn(4, 3)) - average(torch.ones(4, 3)).detach()).square().mean().backward()
        optimizer.step()
        with torch.no_grad():
            for a, p in zip(average.parameters(), model.parameters(), strict=True):
                a.lerp_(p, 0.5)
    state = copy.deepcopy(optimizer.state_dict())
    optimizer.load_state_dict(state)


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * -3 * x**2 * torch.ones(1) * TABLE[0, 0]


def test_custom_function() -> None:
    x = torch.randn(4, requires_grad=True)
    Cube.apply(x).sum().backward()
    torch.testing.assert_close(x.grad, 3 * x.detach() ** 2)
    y = torch.randn(3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(torch.sin, (y,))


def test_hooks() -> None:
    layer, seen = nn.Linear(3, 2), []
    layer.register_forward_hook(lambda m, i, o: seen.append(o.detach().mean().item()))
    layer.weight.register_hook(lambda g: g * torch.tensor(0.5))
    layer.register_full_backward_hook(lambda m, gi, go: seen.append(float(go[0].sum())))
    layer(torch.randn(4, 3, requires_grad=True)).sum().backward()
    assert len(seen) == 2


def test_checkpointing_with_dropout() -> None:
    block = nn.Sequential(nn.Linear(4, 4), nn.GELU(), nn.Dropout(0.3))
    x = torch.randn(3, 4, requires_grad=True)
    checkpoint(block, x, use_reentrant=False).sum().backward()
    checkpoint(block, x, use_reentrant=True).sum().backward()


def test_autocast_and_scaler() -> None:
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = model(torch.randn(4, 8))
        assert out.dtype == torch.bfloat16
    scaler.scale(out.float().mean()).backward()
    scaler.step(optimizer)
    scaler.update()


def test_recurrent_with_packed_sequences() -> None:
    lstm = nn.LSTM(3, 4, num_layers=2, bidirectional=True, dropout=0.2)
    lengths = torch.tensor([5, 2, 1])
    packed = nn.utils.rnn.pack_padded_sequence(torch.randn(5, 3, 3), lengths, enforce_sorted=False)
    out, back = nn.utils.rnn.pad_packed_sequence(lstm(packed)[0])
    assert back.tolist() == [5, 2, 1]
    out.square().sum().backward()
    cell, h = nn.GRUCell(3, 4), torch.zeros(2, 4)
    for x in torch.randn(3, 2, 3):
        h = cell(x, h)
    h.sum().backward()


def test_transformer_and_masks() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    mask = nn.Transformer.generate_square_subsequent_mask(5)
    out = layer(torch.randn(2, 5, 8), src_mask=mask)
    attention, weights = nn.MultiheadAttention(8, 2, batch_first=True)(out, out, out)
    assert weights.shape == (2, 5, 5)
    attention.sum().backward()
    q = torch.randn(2, 2, 5, 4, requires_grad=True)
    F.scaled_dot_product_attention(q, q, q, is_causal=True).square().sum().backward()


def test_functional_transforms() -> None:
    w = torch.randn(3)
    grad = torch.func.grad(lambda v: (v**2).sum())(w)
    torch.testing.assert_close(grad, 2 * w)
    rows = torch.func.vmap(torch.dot, in_dims=(0, None))(torch.randn(4, 3), w)
    assert rows.shape == (4,)
    jacobian = torch.autograd.functional.jacobian(lambda v: v.sin(), w)
    assert jacobian.shape == (3, 3)


def test_functional_calls() -> None:
    layer = nn.Linear(3, 2)
    parameters = {k: v.detach().clone().requires_grad_() for k, v in layer.named_parameters()}
    torch.func.functional_call(layer, parameters, (torch.randn(2, 3),)).sum().backward()
    each = torch.func.vmap(torch.func.grad(lambda w, x: (w * x).sum()), in_dims=(None, 0))
    assert each(torch.ones(3), torch.randn(4, 3)).shape == (4, 3)


def test_meta_device() -> None:
    with torch.device("meta"):
        layer = nn.Linear(2, 2)
    layer = layer.to_empty(device="cpu")
    nn.init.normal_(layer.weight)
    nn.init.zeros_(layer.bias)
    layer(torch.ones(1, 2)).sum().backward()


def test_second_derivatives() -> None:
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    (first,) = torch.autograd.grad((x**3).sum(), x, create_graph=True)
    penalty = (first.norm() - 1) ** 2
    penalty.backward()
    assert x.grad is not None


def test_generators_and_distributions() -> None:
    g = torch.Generator().manual_seed(5)
    noise = torch.randn(4, generator=g)
    picked = torch.multinomial(torch.tensor([0.1, 0.2, 0.7]), 5, replacement=True, generator=g)
    mean = torch.zeros(4, requires_grad=True)
    sample = torch.distributions.Normal(mean, 1.0).rsample()
    gumbel = F.gumbel_softmax(mean.expand(5, 4), hard=True)
    ((sample * noise).sum() + gumbel[picked].sum() + torch.bernoulli(torch.full((3,), 0.5)).sum()).backward()
    state = torch.get_rng_state()
    first = torch.rand(2)
    torch.set_rng_state(state)
    assert torch.equal(first, torch.rand(2))


def test_lbfgs_with_a_closure() -> None:
    x = torch.tensor([-1.0, 1.5], requires_grad=True)
    optimizer = torch.optim.LBFGS([x], max_iter=4)

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = (1 - x[0]) ** 2 + 10 * (x[1] - x[0] ** 2) ** 2
        loss.backward()
        return loss

    optimizer.step(closure)


def test_indexing_and_in_place() -> None:
    x = torch.zeros(4, 3)
    x[1] = torch.tensor([1.0, 2.0, 3.0])
    x[x > 2] = -1
    x.index_add_(0, torch.tensor([0, 0]), torch.ones(2, 3))
    w = torch.ones(3, requires_grad=True)
    y = x * w
    y = y.masked_fill(y < 0, 0).scatter_add(1, torch.tensor([[0, 1]] * 4), torch.ones(4, 2))
    y[torch.arange(4), torch.tensor([0, 1, 2, 0])].sum().backward()
    assert x.tolist()[0] == [2.0, 2.0, 2.0]


def test_convolutions_and_pooling() -> None:
    net = nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, groups=2), nn.GroupNorm(2, 4), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    )  # fmt: skip
    x = F.interpolate(torch.randn(2, 1, 8, 8), scale_factor=2, mode="bilinear")
    F.cross_entropy(net(x), torch.tensor([0, 3]), label_smoothing=0.1).backward()


def test_losses() -> None:
    x = torch.randn(6, 4, 5, requires_grad=True)
    log = x.log_softmax(-1)
    F.ctc_loss(
        log, torch.tensor([[1, 2], [3, 4], [1, 1], [2, 3]]), torch.full((4,), 6), torch.full((4,), 2)
    ).backward()
    F.binary_cross_entropy_with_logits(x, torch.rand(6, 4, 5)).backward()
    F.kl_div(x.log_softmax(-1), torch.full((6, 4, 5), 0.2), reduction="batchmean").backward()
    F.huber_loss(x, torch.zeros(6, 4, 5)).backward()


def test_complex_and_linear_algebra() -> None:
    a = torch.randn(4, 4, requires_grad=True)
    spectrum = torch.fft.rfft(a)
    spectrum.abs().square().sum().backward()
    torch.linalg.solve(a @ a.T + 4 * torch.eye(4), torch.ones(4)).sum().backward()
    torch.linalg.svdvals(a).sum().backward()
    torch.einsum("ij,kj->ik", a, a).logsumexp(0).sum().backward()


def test_parametrizations() -> None:
    layer = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
    other = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3))
    other(layer(torch.randn(2, 3))).sum().backward()


def test_printing_and_control_flow(capsys: pytest.CaptureFixture[str]) -> None:
    x = torch.tensor([1.0, 2.0])
    print(x, f"{x[0]:.2f}", x.device)
    assert capsys.readouterr().out == "tensor([1., 2.]) 1.00 cpu\n"
    steps = 0
    w = torch.ones(2, requires_grad=True)
    while (w * x).sum() < 10 and steps < 5:
        (w * x).sum().backward()
        with torch.no_grad():
            w += 0.3 * w.grad
        steps += 1
    assert steps


def test_default_dtype_and_modes() -> None:
    torch.set_default_dtype(torch.float64)
    try:
        x = torch.randn(3, requires_grad=True)
        assert x.dtype == torch.float64
        x.exp().sum().backward()
    finally:
        torch.set_default_dtype(torch.float32)
    with torch.inference_mode():
        assert nn.Linear(2, 2)(torch.ones(1, 2)).shape == (1, 2)
    with torch.autograd.detect_anomaly(check_nan=False):
        w = torch.ones(2, requires_grad=True)
        w.log().sum().backward()


class TestInAClass:
    def setup_method(self) -> None:
        self.layer = nn.Embedding(6, 3, padding_idx=0)
        self.bag = nn.EmbeddingBag(6, 3, mode="sum")

    def test_embeddings(self) -> None:
        ids = torch.tensor([[1, 2, 0], [4, 4, 1]])
        (self.layer(ids).sum(1) * self.bag(ids)).sum().backward()
        assert self.layer.weight.grad[0].abs().sum() == 0


class UnitTest(unittest.TestCase):
    def setUp(self) -> None:
        self.model = nn.Bilinear(3, 3, 2)

    def test_forward_and_backward(self) -> None:
        out = self.model(torch.randn(4, 3), torch.randn(4, 3))
        self.assertEqual(out.shape, (4, 2))  # noqa: PT009
        self.assertEqual(out.dtype, torch.float32)  # noqa: PT009
        out.prod(1).sum().backward()
        for i in range(2):
            with self.subTest(i=i):
                self.assertTrue(torch.isfinite(out[:, i]).all())  # noqa: PT009


class Counter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros((), dtype=torch.long))
        self.scale = nn.Parameter(torch.tensor([2.0]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.count += 1
        return x * self.scale * self.count


def test_buffers_and_streams() -> None:
    counter = Counter().double().float()
    for _ in range(3):
        counter(torch.arange(3.0)).sum().backward()
    assert counter.count.item() == 3
    stream = io.BytesIO()
    torch.save(counter, stream)
    assert stream.tell() > 0


def test_legacy_constructors_and_typing() -> None:
    x = torch.Tensor([1, 2, 3])
    y = torch.FloatTensor(3).zero_().type(torch.float64)
    z = x.new_tensor([1.0, 0.0, 2.0]).type_as(y)
    w = torch.ones_like(z, requires_grad=True)
    (x.to(z) * w).sum().backward()
    assert isinstance(w, torch.Tensor)
    assert torch.is_tensor(y)


def test_profile_by_parts() -> None:
    w = torch.randn(5, requires_grad=True)
    parts = torch.chunk(w, 2)
    total = sum(p.pow(2).sum() for p in parts)
    values, indices = torch.topk(w, 2)
    order = torch.argsort(w, descending=True)
    assert torch.equal(order[:2], indices)
    (total + values.sum() + torch.cumsum(w, 0)[-1] + torch.where(w > 0, w, w.exp()).sum()).backward()
