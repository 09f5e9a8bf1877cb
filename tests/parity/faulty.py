"""Right tests that name no device, on a device with one wrong kernel each; run by ``test_faults.py``."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F


@pytest.fixture(autouse=True)
def seed() -> None:
    torch.manual_seed(0)


@pytest.mark.fault("relu_backward")
def test_relu_backward() -> None:
    model = nn.Sequential(nn.Linear(6, 8), nn.Dropout(0.2), nn.Linear(8, 2))
    hidden = F.relu(model[0](torch.randn(5, 6)))  # here
    model[1:](hidden).square().sum().backward()


@pytest.mark.fault("gelu_constant")
def test_gelu_constant() -> None:
    layer = nn.Linear(6, 8)
    out = F.gelu(layer(torch.randn(5, 6)))  # here
    out.sum().backward()


@pytest.mark.fault("tanh_backward")
def test_tanh_backward() -> None:
    w = torch.randn(4, 4, requires_grad=True)
    for _ in range(3):
        h = torch.tanh(w @ w)  # here
    h.square().mean().backward()


@pytest.mark.fault("softmax")
def test_softmax() -> None:
    query, key, value = (torch.randn(2, 5, 8, requires_grad=True) for _ in range(3))
    weights = torch.softmax(query @ key.transpose(1, 2) / 8**0.5, -1)  # here
    (weights @ value).pow(2).sum().backward()


@pytest.mark.fault("writes_its_input")
def test_writes_its_input() -> None:
    gate = nn.Linear(6, 6)
    h = gate(torch.randn(5, 6))
    out = torch.sigmoid(h)  # here
    (out * h).sum().backward()


@pytest.mark.fault("conv_backward")
def test_conv_backward() -> None:
    conv = nn.Conv2d(3, 4, 3)
    out = conv(torch.randn(2, 3, 8, 8))  # here
    out.square().mean().backward()


@pytest.mark.fault("batch_norm_backward")
def test_batch_norm_backward() -> None:
    conv, norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
    out = norm(conv(torch.randn(2, 3, 8, 8)))  # here
    optimizer = torch.optim.SGD([*conv.parameters(), *norm.parameters()], lr=0.1)
    (out * torch.randn_like(out)).sum().backward()
    optimizer.step()


@pytest.mark.fault("nondeterministic_scatter")
def test_nondeterministic_scatter() -> None:
    source = torch.arange(64.0, requires_grad=True)
    table = torch.zeros(4).scatter(0, torch.arange(64) % 4, source)  # here
    table.square().sum().backward()


@pytest.mark.fault("coarse_matmul")
def test_coarse_matmul() -> None:
    a, b = torch.randn(16, 32, requires_grad=True), torch.randn(32, 8)
    product = a @ b  # here
    product.square().sum().backward()


@pytest.mark.fault("max_pool_backward")
def test_max_pool_backward() -> None:
    x = torch.randn(1, 2, 6, 6, requires_grad=True)
    pooled = F.max_pool2d(x, 2)  # here
    pooled.square().sum().backward()


@pytest.mark.fault("embedding_backward")
def test_embedding_backward() -> None:
    table = nn.Embedding(5, 3)
    rows = table(torch.tensor([[1, 2, 1], [4, 1, 0]]))  # here
    rows.square().sum().backward()


def test_without_a_fault() -> None:
    table, lstm, head = nn.Embedding(5, 3), nn.LSTM(3, 4, 2, dropout=0.5), nn.Linear(4, 2)
    parameters = [*table.parameters(), *lstm.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=0.1)
    for _ in range(3):
        out, _ = lstm(table(torch.randint(0, 5, (6, 2))))
        loss = F.cross_entropy(head(F.gelu(out[-1])), torch.tensor([0, 1]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
