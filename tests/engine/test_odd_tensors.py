"""Odd tensors are checked, or counted as not checked; their outcome is that of plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from pytest_inplace.engine.guard import examine


def silent(
    make: Callable[[], torch.Tensor], write: Callable[[torch.Tensor], object]
) -> Callable[[], torch.Tensor]:
    """A program whose tensor is saved by a product and then overwritten behind the version counter."""

    def program() -> torch.Tensor:
        w = make().requires_grad_()
        h = w * 1
        y = h * h
        write(h)
        y.sum().abs().backward()
        assert w.grad is not None
        return w.grad

    return program


STRIDED: dict[str, Callable[[], torch.Tensor]] = {
    "float64": lambda: torch.ones(3, dtype=torch.float64),
    "float16": lambda: torch.ones(3, dtype=torch.float16),
    "bfloat16": lambda: torch.ones(3, dtype=torch.bfloat16),
    "complex64": lambda: torch.ones(3, dtype=torch.complex64),
    "scalar": lambda: torch.ones(()),
    "transposed": lambda: torch.ones(2, 3).t(),
    "channels last": lambda: torch.ones(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "large": lambda: torch.ones(1 << 20),
}


@pytest.mark.parametrize("kind", STRIDED)
def test_silent_write_is_found(kind: str) -> None:
    found = examine(silent(STRIDED[kind], lambda h: h.data.mul_(2)))
    assert found.error is None
    assert [(f.code, f.state) for f in found.findings] == [("INP102", "confirmed")]
    assert found.findings[0].values is not None
    assert found.findings[0].values.changed == found.findings[0].values.total


@pytest.mark.parametrize("kind", STRIDED)
def test_untouched_is_clean(kind: str) -> None:
    program = silent(STRIDED[kind], lambda h: None)
    found = examine(program)
    assert found.findings == []
    assert torch.equal(found.result, program())


def test_only_its_own_elements_count() -> None:
    def program() -> None:
        w = torch.ones(4, 4, requires_grad=True)
        h = w * 1
        left = h[:, :2]
        y = left * left
        h.data[:, 2:] = 7.0  # the other half of the same memory
        y.sum().backward()

    assert examine(program).findings == []


def test_element_of_a_gappy_view() -> None:
    def program() -> None:
        w = torch.ones(4, 4, requires_grad=True)
        h = w * 1
        left = h[::2, :2]
        y = left * left
        h.data[2, 1] = 7.0
        y.sum().backward()

    (finding,) = examine(program).findings
    assert finding.values is not None
    assert [c.index for c in finding.values.largest] == [(1, 1)]


def test_nan_that_stays_is_no_change() -> None:
    found = examine(silent(lambda: torch.tensor([1.0, float("nan")]), lambda h: None))
    assert found.findings == []


def test_nan_written_is_found() -> None:
    (finding,) = examine(silent(lambda: torch.ones(3), lambda h: h.data[1].fill_(float("nan")))).findings
    assert finding.values is not None
    assert finding.values.changed == 1
    assert finding.values.max_abs is None


def test_zero_size() -> None:
    found = examine(silent(lambda: torch.ones(0, 3), lambda h: h.data.mul_(2)))
    assert found.error is None
    assert found.findings == []


def _sparse() -> None:
    x = torch.eye(3).to_sparse().requires_grad_()
    torch.sparse.mm(x, torch.ones(3, 2, requires_grad=True)).sum().backward()


def _sparse_csr() -> None:
    torch.mv(torch.eye(3).to_sparse_csr(), torch.ones(3, requires_grad=True)).sum().backward()


def _nested() -> None:
    nested = torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], requires_grad=True)
    (nested * nested).to_padded_tensor(0.0).sum().backward()


def _jagged() -> None:
    nested = torch.nested.nested_tensor(
        [torch.ones(2), torch.ones(3)], layout=torch.jagged, requires_grad=True
    )
    (nested * nested).values().sum().backward()


def _meta() -> None:
    x = torch.ones(3, device="meta", requires_grad=True)
    (x.exp() * x).sum().backward()


def _fake() -> None:
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode():
        x = torch.ones(3, requires_grad=True)
        (x.exp() * x).sum().backward()


def _subclass() -> None:
    class Labelled(torch.Tensor):
        pass

    x = torch.ones(3).as_subclass(Labelled).requires_grad_()
    y = x.exp() * x
    assert type(y) is Labelled
    y.sum().backward()


def _mkldnn() -> None:
    if torch.backends.mkldnn.is_available():
        x = torch.ones(2, 3).to_mkldnn().requires_grad_()
        torch.relu(x).to_dense().sum().backward()


def _quantized() -> None:
    q = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    (torch.ones(3, requires_grad=True) * q.dequantize()).sum().backward()


def _conjugate() -> None:
    x = torch.ones(3, dtype=torch.complex64, requires_grad=True)
    (x.conj() * x.conj().imag).sum().abs().backward()


def _function_mode() -> None:
    with torch.device("cpu"):
        x = torch.ones(3, requires_grad=True)
        (x.exp() * x).sum().backward()


def _expanded() -> None:
    x = torch.ones(1, 3, requires_grad=True)
    e = x.expand(4, 3)
    (e * e.sin()).sum().backward()


EXOTIC = [_sparse, _sparse_csr, _nested, _jagged, _meta, _fake, _subclass, _mkldnn, _quantized, _conjugate,
          _function_mode, _expanded]  # fmt: skip


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("program", EXOTIC, ids=lambda p: p.__name__[1:])
def test_exotic_tensors_run_as_without_the_check(program: Callable[[], None]) -> None:
    program()
    found = examine(program)
    assert found.error is None
    assert found.findings == []
    assert found.coverage.saved == found.coverage.content_checked + found.coverage.version_only


def test_sparse_is_counted_as_not_checked_by_content() -> None:
    found = examine(_sparse)
    assert found.coverage.version_only > 0
    assert any("sparse" in reason for reason in found.coverage.reasons)


def test_tensors_without_elements_are_not_taken_for_one_another() -> None:
    """They all have the address zero, and a double backward saves again what a node has just unpacked."""

    def program() -> list[torch.Tensor]:
        w = torch.ones(4, 4, requires_grad=True)
        h = torch.zeros(0, 4) @ w
        out = torch.addmm(torch.ones(4, requires_grad=True), torch.atan2(h, h + 3), w)
        loss = (out / out.norm()).sin().sum() + h.prod(dim=-1).sum()
        (g,) = torch.autograd.grad(loss, (w,), create_graph=True)
        (loss + (g * g).sum()).backward()
        assert w.grad is not None
        return [g.detach(), w.grad]

    found = examine(program)
    assert found.error is None
    assert found.findings == []
    for checked, plain in zip(found.result, program(), strict=True):
        torch.testing.assert_close(checked, plain, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("part", ["whole", "values"])
def test_the_line_that_wrote_a_sparse_tensor(part: str) -> None:
    def program() -> None:
        index = torch.tensor([[0, 1], [1, 0]])
        weights = torch.sparse_coo_tensor(
            index, torch.tensor([1.0, 2.0]), (2, 2), check_invariants=False
        ).coalesce()
        y = torch.sparse.mm(weights, torch.ones(2, 2, requires_grad=True))
        (weights if part == "whole" else weights.values()).mul_(2)  # written
        y.sum().backward()

    (finding,) = examine(program).findings
    assert finding.code == "INP101"
    assert finding.modified is not None
    assert finding.modified.source is not None
    assert finding.modified.source.endswith("# written")
    assert finding.gradients


def test_a_module_of_another_type_before_backward() -> None:
    """PyTorch has its own words for it; the numbers are the same, and the line is named all the same."""

    def program() -> None:
        layer = torch.nn.Conv1d(1, 1, 2)
        x = torch.ones(1, 1, 4, requires_grad=True)
        y = layer(x).square().sum()
        layer.double()
        y.backward()

    with pytest.raises(RuntimeError, match="expected scalar type") as plain:
        program()
    examination = examine(program)
    assert str(examination.error) == str(plain.value)
    (finding,) = examination.findings
    assert finding.code == "INP103"
    assert finding.modified is not None
    assert finding.modified.source is not None
    assert "layer.double()" in finding.modified.source
    assert finding.note is not None
    assert "could not be compared" in finding.note
