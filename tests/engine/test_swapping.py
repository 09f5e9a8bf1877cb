"""torch.utils.swap_tensors, raw saved-tensor hooks and copied hooks: the same under the check as without."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils import swap_tensors

from pytest_inplace.engine.guard import examine
from pytest_inplace.engine.releases import shows_saved


def leaf() -> torch.Tensor:
    return torch.tensor([1.0, 2.0, 3.0], requires_grad=True)


def swap_parameters_between_steps() -> list[float]:
    layer = nn.Linear(2, 2)
    layer(torch.ones(1, 2)).sum().backward()
    other = nn.Parameter(torch.zeros(2, 2))
    torch.utils.swap_tensors(layer.weight, other)
    return [layer.weight.sum().item(), (layer(torch.ones(1, 2)) - layer.bias).sum().item()]


def swap_a_saved_leaf() -> None:
    w = leaf()
    y = w * w
    torch.utils.swap_tensors(w, leaf())
    y.sum().backward()


def swap_a_saved_input() -> None:
    h = leaf() * 2
    y = h.sin()
    torch.utils.swap_tensors(h, leaf() * 3)
    y.sum().backward()


def swap_a_leaf_whose_graph_saved_nothing() -> None:
    w = leaf()
    y = w + 1
    torch.utils.swap_tensors(w, leaf())
    y.sum().backward()


def module_conversion_by_swapping() -> list[str]:
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        layer = nn.Linear(2, 2)
        layer(torch.ones(1, 2)).sum().backward()
        layer.zero_grad()
        layer.double()
        layer.load_state_dict(nn.Linear(2, 2).state_dict())
        return [str(p.dtype) for p in layer.parameters()]
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def raw_hooks(pack: Callable[[Any], Any], unpack: Callable[[Any], Any]) -> list[float]:
    w = leaf()
    y = (w * 2).exp()
    y.grad_fn._raw_saved_result.register_hooks(pack, unpack)  # type: ignore[union-attr]
    y.data.zero_()
    y.sum().backward()
    assert w.grad is not None
    return w.grad.tolist()


def raw_hooks_that_keep_a_copy() -> list[float]:
    return raw_hooks(lambda t: t.clone(), lambda t: t)


def raw_hooks_that_keep_text() -> list[float]:
    return raw_hooks(lambda t: t.tolist(), torch.tensor)


def raw_hooks_registered_twice() -> None:
    y = leaf().exp()
    for _ in range(2):
        y.grad_fn._raw_saved_result.register_hooks(lambda t: t, lambda t: t)  # type: ignore[union-attr]


def raw_hooks_that_raise() -> None:
    y = leaf().exp()
    y.grad_fn._raw_saved_result.register_hooks(int, int)  # type: ignore[union-attr]


def raw_hooks_after_release() -> None:
    y = leaf().exp()
    raw = y.grad_fn._raw_saved_result  # type: ignore[union-attr]
    y.sum().backward()
    raw.register_hooks(lambda t: t, lambda t: t)


def double_the_gradient(grad: torch.Tensor) -> torch.Tensor:
    return grad * 2


def module_hook(module: nn.Module, grad_input: Any, grad_output: Any) -> None:
    pass


def hooks_are_copied_and_pickled() -> list[Any]:
    layer = nn.Linear(3, 3)
    layer.register_full_backward_hook(module_hook)
    layer.register_full_backward_pre_hook(lambda module, grads: None)
    twin = copy.deepcopy(layer)
    (hook,) = twin._backward_hooks.values()
    layer._backward_pre_hooks.clear()
    (loaded,) = pickle.loads(pickle.dumps(layer))._backward_hooks.values()
    return [hook.__name__, loaded is module_hook]


gives_way = pytest.mark.skipif(
    not shows_saved(),
    reason="torch 2.4 does not tell what `_raw_saved_x` holds, so our hooks stay there",
)
PROGRAMS = [
    swap_parameters_between_steps,
    swap_a_saved_leaf,
    swap_a_saved_input,
    swap_a_leaf_whose_graph_saved_nothing,
    module_conversion_by_swapping,
    pytest.param(raw_hooks_that_keep_a_copy, marks=gives_way),
    pytest.param(raw_hooks_that_keep_text, marks=gives_way),
    raw_hooks_registered_twice,
    pytest.param(raw_hooks_that_raise, marks=gives_way),
    raw_hooks_after_release,
    hooks_are_copied_and_pickled,
]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_the_program_goes_as_in_plain_pytorch(program: Callable[[], Any]) -> None:
    torch.manual_seed(0)
    plain: Any
    try:
        plain = program()
    except Exception as error:
        plain = (type(error), str(error).split("Exception raised from")[0])
    torch.manual_seed(0)
    found = examine(program)
    checked = found.result
    if found.error is not None:
        checked = (type(found.error), str(found.error).split("Exception raised from")[0])
    assert checked == plain
    assert found.findings == []


@gives_way
def test_what_raw_hooks_keep_is_said_to_be_unchecked() -> None:
    found = examine(raw_hooks_that_keep_a_copy)
    assert "a saved tensor on which the test registered hooks" in found.coverage.reasons


@gives_way
def test_the_tensor_dies_that_raw_hooks_did_not_keep() -> None:
    """A hook that offloads is there to free memory."""
    import weakref

    def program() -> bool:
        w = leaf()
        h = w * 2
        y = h.sin()
        y.grad_fn._raw_saved_self.register_hooks(lambda t: t.clone(), lambda t: t)  # type: ignore[union-attr]
        gone = weakref.ref(h)
        del h
        return gone() is None

    assert program() is examine(program).result


TAKEN_AS_A_WHOLE: dict[str, Callable[[list[torch.Tensor]], torch.Tensor]] = {
    "foreach": lambda xs: torch._foreach_mul(xs, [x.exp() + 1 for x in xs])[0],
    "list": torch.linalg.multi_dot,
    "tuple": lambda xs: torch.linalg.multi_dot(tuple(xs)),
    "arguments": lambda xs: torch.addcmul(xs[2], *xs[:2]),
}


@pytest.mark.parametrize("operation", TAKEN_AS_A_WHOLE)
@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_other_memory_for_an_element_of_a_list(operation: str, factor: float) -> None:
    """No variable refers to it while it is saved, but the list does after that."""

    def program(factor: float) -> torch.Tensor:
        w = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        xs = [w * 1, w * 2, w.sin()]
        y = TAKEN_AS_A_WHOLE[operation](xs)
        xs[0].data = xs[0].detach() * factor
        y.sum().backward()
        assert w.grad is not None
        return w.grad

    right, computed = program(1.0), program(factor)
    examination = examine(lambda: program(factor))
    assert torch.equal(examination.result, computed)
    found = [(f.code, f.gradients[0].max_abs) for f in examination.findings]
    assert found == ([("INP102", float((right - computed).abs().max()))] if factor != 1.0 else [])


@pytest.mark.parametrize("operation", TAKEN_AS_A_WHOLE)
def test_an_element_of_a_list_that_is_detached_in_place(operation: str) -> None:
    def program() -> None:
        w = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
        xs = [w * 1, w * 2, w.sin()]
        y = TAKEN_AS_A_WHOLE[operation](xs)
        xs[0].detach_()
        y.sum().backward()

    with pytest.raises(RuntimeError, match="detached in-place") as plain:
        program()
    assert str(examine(program).error) == str(plain.value)


def test_swapping_by_a_name_imported_before() -> None:
    """``from torch.utils import swap_tensors`` at the top of a module came before anything is watched."""

    class Keeps(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
            ctx.factor = factor
            return x * factor

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
            return grad * ctx.factor, None

    def of_a_ctx() -> list[float]:
        factor, other = torch.ones(3), torch.zeros(3)
        y = Keeps.apply(leaf(), factor)
        swap_tensors(factor, other)
        assert y.requires_grad
        values: list[float] = factor.tolist()
        return values

    def of_a_saved_leaf() -> torch.Tensor:
        w = leaf()
        y = w.sin()
        swap_tensors(w, leaf())
        return y

    code = swap_tensors.__code__
    examination = examine(of_a_ctx)
    assert examination.error is None
    assert examination.result == of_a_ctx()
    with pytest.raises(RuntimeError, match="Expected use_count") as plain:
        of_a_saved_leaf()
    assert str(examine(of_a_saved_leaf).error) == str(plain.value)
    assert swap_tensors.__code__ is code
