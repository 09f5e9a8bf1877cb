"""What is kept outside autograd, by Functions, hooks, checkpoints: right uses are clean, wrong ones found."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from pytest_inplace.engine.guard import examine, guard
from pytest_inplace.reports.findings import Finding


def codes(program: Callable[[], Any]) -> list[str]:
    found = examine(program)
    assert found.error is None
    return [finding.code for finding in found.findings]


def only(program: Callable[[], Any]) -> Finding:
    found = examine(program)
    assert found.error is None
    (finding,) = found.findings
    return finding


def leaf() -> torch.Tensor:
    return torch.tensor([1.0, 2.0, 3.0], requires_grad=True)


class Kept(torch.autograd.Function):
    """Keeps its input on ctx, in whichever way ``how`` says."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, how: str) -> torch.Tensor:
        if how == "attribute":
            ctx.x = x
        elif how == "list":
            ctx.kept = [1, [x]]
        elif how == "dict":
            ctx.kept = {"x": x}
        elif how == "closure":
            ctx.kept = lambda: x
        elif how == "saved":
            ctx.save_for_backward(x)
        ctx.how = how
        return x * x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        x = {
            "attribute": lambda: ctx.x,
            "list": lambda: ctx.kept[1][0],
            "dict": lambda: ctx.kept["x"],
            "closure": lambda: ctx.kept(),
            "saved": lambda: ctx.saved_tensors[0],
        }[ctx.how]()
        return 2 * x * grad, None


@pytest.mark.parametrize("how", ["attribute", "list", "dict", "closure"])
def test_kept_on_ctx_and_changed(how: str) -> None:
    def program() -> None:
        h = leaf() * 2
        y = Kept.apply(h, how)
        h.data.add_(1)
        y.sum().backward()

    finding = only(program)
    assert finding.code == "INP201"
    assert finding.modified is not None
    assert finding.modified.source == "        h.data.add_(1)"
    assert finding.gradients[0].max_abs == pytest.approx(4.0)


@pytest.mark.parametrize("how", ["attribute", "list", "dict", "closure", "saved"])
def test_kept_and_untouched(how: str) -> None:
    def program() -> None:
        h = leaf() * 2
        Kept.apply(h, how).sum().backward()
        h.data.add_(1)

    assert codes(program) == []


def test_setup_context_style() -> None:
    class Styled(torch.autograd.Function):
        @staticmethod
        def forward(x: torch.Tensor) -> torch.Tensor:
            return x * x

        @staticmethod
        def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
            (ctx.x,) = inputs

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            return 2 * ctx.x * grad

    def program() -> None:
        h = leaf() * 2
        y = Styled.apply(h)
        h.data.add_(1)
        y.sum().backward()

    assert codes(program) == ["INP201"]


def test_scratch_on_ctx_is_no_finding() -> None:
    class Scratch(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.scratch = torch.zeros_like(x)
            return x * 3

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            return torch.mul(grad, 3, out=ctx.scratch)

    def program() -> None:
        w = leaf()
        y = Scratch.apply(w)
        y.grad_fn.scratch.fill_(7)
        y.sum().backward()

    assert codes(program) == []


class Doubled(torch.autograd.Function):
    """Doubles its input in place; honest about it or not."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, honest: bool) -> torch.Tensor:
        x.mul_(2)
        if honest:
            ctx.mark_dirty(x)
        return x

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad * 2, None


def test_mark_dirty_is_right() -> None:
    def program() -> None:
        h = leaf() * 1
        Doubled.apply(h, True)
        h.sum().backward()

    assert codes(program) == []


def test_input_written_and_used_afterwards() -> None:
    def program() -> None:
        h = leaf() * 1
        Doubled.apply(h, False)
        h.sum().backward()

    finding = only(program)
    assert finding.code == "INP202"
    assert finding.modified is not None
    assert finding.modified.source == "        x.mul_(2)"


def test_input_returned_unchanged() -> None:
    class Same(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            return grad

    def program() -> None:
        h = leaf() * 1
        (Same.apply(h) * h).sum().backward()

    assert codes(program) == []


class Scale(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return x * 4

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        return grad.mul_(4)


WEIGHTS = torch.tensor([1.0, 2.0, 3.0])


def test_shared_gradient_overwritten_in_backward() -> None:
    def program() -> None:
        a, b = leaf(), leaf()
        other = b * WEIGHTS  # older than the Function's node, so its backward comes later
        ((Scale.apply(a) + other) * WEIGHTS).sum().backward()
        assert b.grad is not None
        assert torch.equal(b.grad, 4 * WEIGHTS**2)

    finding = only(program)
    assert finding.code == "INP203"
    assert [(g.name, g.max_abs) for g in finding.gradients] == [("b", 27.0)]


def test_a_leaf_has_copied_the_gradient_that_is_overwritten() -> None:
    def program() -> None:
        a, b = leaf(), leaf()
        ((Scale.apply(a) + b) * WEIGHTS).sum().backward()
        assert b.grad is not None
        assert torch.equal(b.grad, WEIGHTS)

    assert codes(program) == []


def test_a_captured_gradient_that_is_overwritten() -> None:
    """Where ``.grad`` would have had a copy, ``autograd.grad`` returns the shared memory itself."""

    def program() -> None:
        a, b = leaf(), leaf()
        _, gradient = torch.autograd.grad(((Scale.apply(a) + b) * WEIGHTS).sum(), (a, b))
        assert torch.equal(gradient, 4 * WEIGHTS)

    assert codes(program) == ["INP203"]


def test_gradients_on_trial_leave_other_leaves_alone() -> None:
    """Only the inputs that backward was asked for get a gradient, on trial as for real."""

    def program() -> None:
        a, b, c = leaf(), leaf(), leaf()
        other = b * WEIGHTS
        ((Scale.apply(a) + other + c) * WEIGHTS).sum().backward(inputs=[a, b])
        assert c.grad is None

    assert codes(program) == ["INP203"]


def test_own_gradient_overwritten_in_backward() -> None:
    def program() -> None:
        a = leaf()
        (Scale.apply(a) * WEIGHTS).sum().backward()

    assert codes(program) == []


@pytest.mark.parametrize("shared", [True, False])
def test_tensor_hook_that_overwrites(shared: bool) -> None:
    def program() -> None:
        a, b = leaf(), leaf()
        other = b * 3
        h = a * 2
        h.register_hook(_scale)  # returns nothing: what it wrote goes on
        total = h + other if shared else h
        (total * WEIGHTS).sum().backward()

    assert codes(program) == (["INP203"] if shared else [])


def _scale(grad: torch.Tensor) -> None:
    grad.mul_(10)


@pytest.mark.parametrize("shared", [True, False])
def test_module_hook_that_overwrites(shared: bool) -> None:
    def overwrite(module: nn.Module, grad_input: Any, grad_output: Any) -> None:
        grad_output[0].mul_(10)

    def program() -> None:
        a, b = leaf(), leaf()
        other = b * 3
        layer = nn.Linear(3, 3, bias=False)  # a bias would share its output's gradient
        layer.register_full_backward_hook(overwrite)
        h = layer(a * 2)
        total = h + other if shared else h
        (total * WEIGHTS).sum().backward()

    assert codes(program) == (["INP203"] if shared else [])


def test_post_accumulate_hook_on_shared_memory() -> None:
    def scale(p: torch.Tensor) -> None:
        assert p.grad is not None
        p.grad.mul_(10)

    def program() -> None:
        a = torch.ones(4, requires_grad=True)
        b = torch.ones(4, requires_grad=True)
        a.register_post_accumulate_grad_hook(scale)
        ((a.view(2, 2) + b.view(2, 2)) * torch.arange(4.0).view(2, 2)).sum().backward()

    assert only(program).code == "INP203"


def test_optimizer_in_backward_is_clean() -> None:
    def program() -> None:
        model = nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 3))
        optimizers = {p: torch.optim.SGD([p], lr=0.1) for p in model.parameters()}

        def step(p: torch.Tensor) -> None:
            optimizers[p].step()
            optimizers[p].zero_grad(set_to_none=False)

        for p in model.parameters():
            p.register_post_accumulate_grad_hook(step)
        for _ in range(3):
            model(torch.ones(2, 3)).sum().backward()

    assert codes(program) == []


def test_clipping_and_zeroing_are_clean() -> None:
    def program() -> None:
        model = nn.Linear(3, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(2):
            model(torch.ones(2, 3)).square().sum().backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)

    assert codes(program) == []


class Block(nn.Module):
    def __init__(self, drop: float = 0.0) -> None:
        super().__init__()
        self.lin = nn.Linear(3, 3)
        self.drop = nn.Dropout(drop)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.drop(self.lin(x)))


@pytest.mark.parametrize("reentrant", [False, True])
def test_parameter_changed_before_recomputation(reentrant: bool) -> None:
    def program() -> None:
        block = Block()
        x = torch.ones(2, 3, requires_grad=True)
        y = checkpoint(block, x, use_reentrant=reentrant)
        block.lin.weight.data.mul_(2)
        y.sum().backward()

    finding = only(program)
    assert finding.code == "INP204"
    assert finding.tensor.name == "block.lin.weight"
    assert finding.modified is not None
    assert finding.modified.source == "        block.lin.weight.data.mul_(2)"
    assert finding.gradients


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("preserve", [True, False])
@pytest.mark.parametrize("drop", [0.0, 0.5])
def test_checkpoint_used_rightly(reentrant: bool, preserve: bool, drop: float) -> None:
    def program() -> None:
        blocks = nn.ModuleList([Block(drop), Block(drop)])
        x = torch.ones(2, 3, requires_grad=True)
        for _ in range(2):
            h = x
            for block in blocks:
                h = checkpoint(block, h, use_reentrant=reentrant, preserve_rng_state=preserve)
            h.sum().backward()

    assert codes(program) == []


def test_nested_checkpoints() -> None:
    def program(write: bool) -> None:
        inner, outer = Block(), Block()

        def both(x: torch.Tensor) -> torch.Tensor:
            return outer(checkpoint(inner, x, use_reentrant=False))  # type: ignore[no-any-return]

        y = checkpoint(both, torch.ones(2, 3, requires_grad=True), use_reentrant=False)
        if write:
            inner.lin.weight.data.mul_(2)
        y.sum().backward()

    assert codes(lambda: program(False)) == []
    assert codes(lambda: program(True)) == ["INP204"]


class Hooks:
    """Saved-tensor hooks as users write them."""

    alias = (lambda t: t, lambda t: t)
    in_a_list = (lambda t: [t], lambda t: t[0])
    copy = (lambda t: t.detach().clone(), lambda t: t)
    half = (lambda t: t.to(torch.bfloat16), lambda t: t.to(torch.float32))


@pytest.mark.parametrize(
    ("hooks", "expected"),
    [("alias", ["INP205"]), ("in_a_list", ["INP205"]), ("copy", []), ("half", [])],
)
def test_user_hooks(hooks: str, expected: list[str]) -> None:
    def program() -> None:
        with torch.autograd.graph.saved_tensors_hooks(*getattr(Hooks, hooks)):
            h = leaf() * 2
            y = h * h.sin()
        h.data.add_(1)
        y.sum().backward()

    assert codes(program) == expected


def test_hooks_that_keep_an_alias_elsewhere() -> None:
    def program() -> None:
        store: list[torch.Tensor] = []

        def pack(t: torch.Tensor) -> int:
            store.append(t)
            return len(store) - 1

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda i: store[i]):
            h = leaf() * 2
            y = h.sin()
        h.data.add_(1)
        y.sum().backward()

    assert codes(program) == ["INP205"]


def test_allowed_mutation_is_right() -> None:
    def program() -> None:
        with torch.autograd.graph.allow_mutation_on_saved_tensors():
            h = leaf() * 2
            y = h.sin()
            h.add_(1)
            y.sum().backward()

    assert codes(program) == []


@pytest.mark.parametrize("where", ["forward", "backward"])
def test_function_that_raises(where: str) -> None:
    class Raising(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.x = x
            if where == "forward":
                raise ValueError("in forward")
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            raise ValueError("in backward")

    def program() -> None:
        Raising.apply(leaf()).sum().backward()

    found = examine(program)
    assert str(found.error) == f"in {where}"
    assert isinstance(found.error, ValueError)
    assert found.findings == []


def test_hook_that_raises_and_hook_that_is_removed() -> None:
    def program() -> None:
        h = leaf() * 2
        handle = h.register_hook(lambda grad: 1 / 0)
        handle.remove()
        h.sum().backward(retain_graph=True)
        h.register_hook(lambda grad: 1 / 0)
        h.sum().backward()

    found = examine(program)
    assert isinstance(found.error, ZeroDivisionError)


def test_odd_attributes_on_ctx() -> None:
    class Odd:
        def __getattr__(self, name: str) -> Any:
            raise RuntimeError(name)

    class Strange(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
            ctx.odd, ctx.self, ctx.type, ctx.many = Odd(), ctx, dict, list(range(10000))
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: torch.Tensor) -> Any:
            return grad * 2

    assert codes(lambda: Strange.apply(leaf()).sum().backward()) == []


@pytest.mark.parametrize("mode", ["all", "any"])
@pytest.mark.parametrize("in_place", [False, True])
def test_a_hook_on_several_gradients(mode: Any, in_place: bool) -> None:
    def program() -> None:
        x = leaf()
        a, b = x * 2, x * 3

        def shrink(given: Any) -> None:
            gradient = given[1] if mode == "all" else given
            if in_place:
                gradient.mul_(0.1)

        torch.autograd.graph.register_multi_grad_hook([a, b], shrink, mode=mode)
        (a + b).square().sum().backward()

    assert codes(program) == ["INP203"] * in_place


def test_a_view_made_without_gradients_of_what_is_written() -> None:
    def program() -> list[torch.Tensor]:
        h = leaf() * 1
        with torch.no_grad():
            view = h.view(-1)
        y = torch.sigmoid(leaf()) * h
        h.mul_(2)
        return [y, view]

    (finding,) = examine(program).findings
    assert (finding.code, finding.state) == ("INP101", "latent")


@pytest.mark.parametrize("used", [False, True])
def test_hooks_that_keep_a_view_of_a_leaf_that_is_written(used: bool) -> None:
    """Made without gradients, as hooks are called, it must not be asked for its node after that."""

    def program() -> None:
        w = leaf()
        with torch.autograd.graph.saved_tensors_hooks(lambda t: [t.view_as(t)], lambda kept: kept[0]):
            y = w.view(3).sin() if used else torch.nn.functional.max_pool1d(w[None], 2)
        with torch.no_grad():
            w[::2].mul_(0.5)
        y.sum().backward()

    assert codes(program) == ["INP205"] * used


class Store(torch.autograd.graph.saved_tensors_hooks):
    """Keeps what is saved under a number, and gives it away once."""

    def __init__(self) -> None:
        self._kept: dict[int, torch.Tensor] = {}
        super().__init__(self._put, self._kept.pop)

    def _put(self, tensor: torch.Tensor) -> int:
        self._kept[len(self._kept)] = tensor
        return len(self._kept) - 1


@pytest.mark.parametrize("write", [False, True])
def test_a_trial_takes_nothing_from_hooks_that_give_a_thing_once(write: bool) -> None:
    x = leaf()
    with guard(raises=False) as report:
        with Store():
            y = torch.sigmoid(x)
        if write:
            y.detach().numpy()[0] = 0.5
        y.sum().backward()
        h = torch.sigmoid(x)
        h.data[0] = 0.5
        h.sum().backward()
    assert [finding.code for finding in report.findings] == ["INP205"] * write + ["INP102"]
