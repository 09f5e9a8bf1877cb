"""Right programs that take their time to compile, run with and without the plugin.

Each records what it computed and saw; not one may differ.
"""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
import torch._dynamo.testing

from tests.neighbours.shared import network, seeds  # noqa: F401 - a fixture

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(autouse=True)
def compiled_anew():
    torch._dynamo.reset()


def test_inductor(record):
    pytest.importorskip("torch._inductor")
    model = network()
    compiled = torch.compile(model, fullgraph=True)
    x = torch.randn(5, 4, requires_grad=True)
    compiled(x).sum().backward()
    record(x.grad, *[p.grad for p in model.parameters()])


def test_compiled_autograd(record):
    """The values are the same. Of frames there are more: what any hooks give back breaks the graph."""
    model = network()
    x = torch.randn(5, 4)
    with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
        for _ in range(3):
            model(x).sum().backward()
    record(*[p.grad for p in model.parameters()])
