"""From an entry of PyTorch's operator database to programs: forward, one write, backward."""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.utils._pytree import TreeSpec, tree_flatten, tree_unflatten

from .layout import keep_layout
from .writes import NONE, write

SEED = 20240229
SAMPLES_LOOKED_AT = 40
FEW_ELEMENTS = 2048  # where a sample is that small, larger ones are left out
MOST_ELEMENTS = 200_000

Gradients = tuple[torch.Tensor | None, ...]

FUNCTION = "function"
INPLACE = "inplace"  # the operator's own in-place variant
STRIDED = "strided"  # the function on inputs with gaps between their elements


class UnusableError(Exception):
    """This operator or sample can't give a case; the message is the reason."""


@contextmanager
def quietly() -> Iterator[None]:
    """Without warnings: half of the database is deprecated or experimental."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


@lru_cache(maxsize=1)
@quietly()
def operators() -> dict[str, Any]:
    """Every OpInfo that supports autograd, by `name` or `name@variant`."""
    # Imported here since it takes seconds, and collecting the quick subset doesn't need it.
    from torch.testing._internal.common_methods_invocations import op_db

    found: dict[str, Any] = {}
    for op in op_db:
        if op.supports_autograd:
            key = f"{op.name}@{op.variant_test_name}" if op.variant_test_name else op.name
            if key in found:
                raise RuntimeError(f"two operators are called {key}")
            found[key] = op
    return found


@dataclass(frozen=True)
class Recipe:
    """How to call one operator on one sample, from fresh tensors each time."""

    function: Callable[..., Any]
    tensors: tuple[torch.Tensor, ...]  # distinct ones, in order of appearance
    slots: tuple[int, ...]  # which tensor stands at each tensor leaf of the arguments
    leaves: tuple[Any, ...]
    spec: TreeSpec
    # The database's own choice of what to differentiate, such as singular vectors up to their phase.
    select: Callable[[Any], Any]

    def fresh(self, leaf: bool) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The autograd leaves, and the tensors that are handed to the operator."""
        roots: list[torch.Tensor] = []
        given: list[torch.Tensor] = []
        for tensor in self.tensors:
            copy = keep_layout(tensor)
            if tensor.requires_grad:
                copy.requires_grad_()
                roots.append(copy)
                copy = copy if leaf else copy.clone()
            given.append(copy)
        return roots, given

    def call(self, given: list[torch.Tensor]) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        """The tensors among what the operator returns, and those to differentiate (mostly the same)."""
        slots = iter(self.slots)
        leaves = [given[next(slots)] if isinstance(x, torch.Tensor) else x for x in self.leaves]
        args, kwargs = tree_unflatten(leaves, self.spec)
        returned = self.function(*args, **kwargs)
        return _tensors(returned), _tensors(self.select(returned))


def _tensors(tree: Any) -> list[torch.Tensor]:
    return [x for x in tree_flatten(tree)[0] if isinstance(x, torch.Tensor)]


def _recipe(function: Callable[..., Any], sample: Any) -> Recipe:
    leaves, spec = tree_flatten(((sample.input, *sample.args), dict(sample.kwargs)))
    tensors: list[torch.Tensor] = []
    slots: list[int] = []
    for x in leaves:
        if isinstance(x, torch.Tensor):
            known = [i for i, other in enumerate(tensors) if other is x]
            slots.append(known[0] if known else len(tensors))
            if not known:
                tensors.append(x)
    return Recipe(function, tuple(tensors), tuple(slots), tuple(leaves), spec, sample.output_process_fn_grad)


def _wanted(recipe: Recipe) -> bool:
    wanted = [t for t in recipe.tensors if t.requires_grad and t.layout == torch.strided and t.numel() > 0]
    return bool(wanted) and _elements(recipe) <= MOST_ELEMENTS


def _elements(recipe: Recipe) -> int:
    return sum(t.numel() for t in recipe.tensors)


@lru_cache(maxsize=8)
@quietly()
def recipes(operator: str, form: str, dtype: torch.dtype, limit: int) -> tuple[Recipe, ...]:
    """At most `limit` small samples, spread over the first ones the database gives."""
    op = operators()[operator]
    function = op.get_inplace() if form == INPLACE else op.get_op()
    torch.manual_seed(SEED)
    random.seed(SEED)
    _seed_numpy()
    samples: Iterator[Any] = itertools.islice(
        op.sample_inputs("cpu", dtype, requires_grad=True), SAMPLES_LOOKED_AT
    )
    if form == INPLACE:
        samples = (s for s in samples if not s.broadcasts_input)
    if form == STRIDED:
        samples = (s.noncontiguous() for s in samples)
    small = [r for r in (_recipe(function, s) for s in samples) if _wanted(r)]
    if not small:
        raise UnusableError("no small strided sample that requires grad")
    small = [r for r in small if _elements(r) <= FEW_ELEMENTS] or [min(small, key=_elements)]
    if len(small) <= limit:
        return tuple(small)
    return tuple(small[i * (len(small) - 1) // max(limit - 1, 1)] for i in range(limit))


def _seed_numpy() -> None:
    try:
        import numpy
    except ImportError:
        return
    numpy.random.seed(SEED % 2**32)


def projection(outputs: list[torch.Tensor]) -> torch.Tensor:
    """A fixed random real-linear function of the differentiable outputs.

    Linear with constant coefficients, so it saves none of the outputs for its own backward pass.
    """
    generator = torch.Generator().manual_seed(SEED)
    loss = torch.zeros((), dtype=torch.float64)
    for out in outputs:
        if out.requires_grad:
            # Not all operations the projection needs exist for half and complex half on CPU.
            wide = out.to(torch.complex128 if out.is_complex() else torch.float64)
            coefficients = torch.randn(out.shape, generator=generator, dtype=wide.dtype)
            term = (wide * coefficients).sum()
            loss = loss + (term.real if term.is_complex() else term)
    return loss


def program(recipe: Recipe, leaf: bool, target: tuple[str, int] | None, kind: str) -> Callable[[], Gradients]:
    """A program without arguments that can be run any number of times, to the same gradients."""

    def run() -> Gradients:
        torch.manual_seed(SEED)
        roots, given = recipe.fresh(leaf)
        outputs, selected = recipe.call(given)
        if target is not None and kind != NONE:
            side, index = target
            write(kind, given[index] if side == "in" else outputs[index])
        torch.autograd.backward(projection(selected))
        return tuple(root.grad for root in roots)

    return run


@dataclass(frozen=True)
class Tensors:
    """What a case may write to: the inputs, and the outputs that aren't one of the inputs."""

    inputs_require_grad: tuple[bool, ...]
    outputs_require_grad: dict[int, bool]
    outputs_are_views: dict[int, bool]


@quietly()
def probe(recipe: Recipe, leaf: bool) -> Tensors:
    """Run the forward pass once to see its tensors."""
    torch.manual_seed(SEED)
    _, given = recipe.fresh(leaf)
    outputs, selected = recipe.call(given)
    every = [*given, *outputs, *selected]
    if any(t.layout != torch.strided or t.device.type != "cpu" for t in every):
        raise UnusableError("a tensor that isn't strided")
    if not any(out.requires_grad for out in selected):
        raise UnusableError("no output requires grad")
    if sum(out.numel() for out in selected if out.requires_grad) == 0:
        raise UnusableError("all differentiable outputs are empty")
    new: dict[int, torch.Tensor] = {}
    for index, out in enumerate(outputs):
        if out.numel() and not any(out is other for other in [*given, *new.values()]):
            new[index] = out
    return Tensors(
        tuple(t.requires_grad for t in given),
        {index: out.requires_grad for index, out in new.items()},
        {index: out._is_view() for index, out in new.items()},
    )
