"""Right programs that PyTorch compiles, exports or scripts, run with and without the plugin.

Each records what it computed and saw; not one may differ.
"""

from __future__ import annotations

import pytest
import torch
import torch._dynamo
import torch._dynamo.testing

from tests.neighbours.shared import f, network, seeds, train  # noqa: F401 - a fixture

pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture(autouse=True)
def compiled_anew():
    torch._dynamo.reset()


# -- compilers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled(record, backend):
    model = network()
    compiled = torch.compile(model, backend=backend, fullgraph=True)
    x = torch.randn(5, 4, requires_grad=True)
    compiled(x).sum().backward()
    record(x.grad, *[p.grad for p in model.parameters()])


def test_compilations_are_as_many(record):
    counter = torch._dynamo.testing.CompileCounter()

    @torch.compile(backend=counter, fullgraph=True)
    def compiled(x, n):
        return (x.exp() * n).sum()

    for size in (3, 3, 4, 5):
        x = torch.randn(size, requires_grad=True)
        compiled(x, 2).backward()
    record(counter.frame_count, counter.op_count)


def test_compiled_with_a_transform_inside(record):
    @torch.compile(backend="aot_eager")
    def compiled(x):
        return torch.func.grad(f)(x)

    record(compiled(torch.randn(4)))
    record(*train(network()))


def test_export(record):
    program = torch.export.export(network(), (torch.randn(5, 4),))
    record(program.graph_module.code, program.module()(torch.ones(5, 4)))


def test_export_for_training(record):
    model = network()
    record(str(torch.fx.symbolic_trace(model).code))
    record(*train(torch.fx.symbolic_trace(model)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_jit(record):
    model = network()
    x = torch.randn(5, 4, requires_grad=True)
    for made in (torch.jit.trace(model, x), torch.jit.script(model)):
        for _ in range(3):
            made(x).sum().backward()
    record(x.grad)
