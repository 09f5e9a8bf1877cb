"""Which cases there are; `programs` makes them run and `labels` says what's true of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch

from .programs import FUNCTION, INPLACE, STRIDED, Recipe, Tensors, UnusableError, operators, probe, recipes
from .writes import IN_GRAPH, NONE, SILENT, VERSION, WRITES

DTYPES = {"float64": torch.float64, "complex128": torch.complex128}
SAMPLES = 3
# Large lists of tensors (foreach operators, splits) repeat themselves.
TENSORS_PER_SIDE = 4

# One or two operators of each family of saved tensors; fixed, so that a quick run doesn't have to import the
# operator database to be collected.
QUICK = (
    "__getitem__", "__rmul__", "_softmax_backward_data", "acos", "addcdiv", "addmm", "amax",
    "as_strided", "atan2", "baddbmm", "broadcast_to", "cat", "cdist", "cholesky", "clamp", "complex",
    "cumprod", "dist", "div@no_rounding_mode", "einsum", "exp", "expand", "gather", "index_add",
    "index_put", "kthvalue", "linalg.inv", "linalg.lu_factor", "linalg.norm", "linalg.svd", "log",
    "log_softmax", "logsumexp", "masked_fill", "matmul", "max@reduction_with_dim", "median", "mul",
    "nn.functional.batch_norm", "nn.functional.conv2d", "nn.functional.cross_entropy",
    "nn.functional.dropout", "nn.functional.embedding", "nn.functional.gelu",
    "nn.functional.layer_norm", "nn.functional.max_pool2d", "nn.functional.prelu", "nn.functional.relu",
    "nn.functional.scaled_dot_product_attention", "norm", "permute", "pow", "prod", "real",
    "reciprocal", "scatter", "sigmoid", "sort", "sqrt", "std", "take_along_dim", "tanh", "topk",
    "unbind", "var_mean", "where",
)  # fmt: skip


@dataclass(frozen=True)
class Case:
    """One operator on one sample with one write."""

    operator: str
    form: str
    dtype: str
    sample: int
    leaf: bool  # inputs are autograd leaves, or else clones of leaves
    target: tuple[str, int] | None
    write: str

    @property
    def id(self) -> str:
        leaf = "leaf" if self.leaf else "nonleaf"
        target = "{}{}".format(*self.target) if self.target else "-"
        return ":".join((self.operator, self.form, self.dtype, str(self.sample), leaf, target, self.write))

    @classmethod
    def parse(cls, text: str) -> Case:
        operator, form, dtype, sample, leaf, target, write = text.split(":")
        side = "in" if target.startswith("in") else "out"
        pair = None if target == "-" else (side, int(target.removeprefix(side)))
        return cls(operator, form, dtype, int(sample), leaf == "leaf", pair, write)


@dataclass(frozen=True)
class Excluded:
    """An operator, or one sample of it, that gives no cases."""

    operator: str
    form: str
    dtype: str
    sample: int | None
    reason: str


@dataclass(frozen=True)
class Subject:
    """A sample with all its cases; `labels` screens it once."""

    operator: str
    form: str
    dtype: str
    sample: int
    leaf: bool
    recipe: Recipe
    cases: tuple[Case, ...]

    def excluded(self, reason: str) -> Excluded:
        return Excluded(self.operator, self.form, self.dtype, self.sample, reason)


def _kinds(leaf: bool, full: bool, requires_grad: bool, is_view: bool, side: str) -> tuple[str, ...]:
    # In grad mode an in-place operation on a tensor that requires no grad is the same as without grad mode.
    if leaf:
        # The leaf-ness of the inputs changes something only for the inputs and for views of them.
        if side == "in" or full:
            kinds: tuple[str, ...] = (VERSION, SILENT, IN_GRAPH)
        else:
            kinds = (VERSION, IN_GRAPH) if is_view else ()
    else:
        kinds = WRITES if full else (VERSION, IN_GRAPH, SILENT)
    return kinds if requires_grad else tuple(kind for kind in kinds if kind != IN_GRAPH)


def _writes(tensors: Tensors, leaf: bool, full: bool) -> Iterator[tuple[tuple[str, int] | None, str]]:
    yield None, NONE
    for index, requires_grad in list(enumerate(tensors.inputs_require_grad))[:TENSORS_PER_SIDE]:
        if leaf and not requires_grad:
            continue
        for kind in _kinds(leaf, full, requires_grad, False, "in"):
            yield ("in", index), kind
    for index, requires_grad in list(tensors.outputs_require_grad.items())[:TENSORS_PER_SIDE]:
        for kind in _kinds(leaf, full, requires_grad, tensors.outputs_are_views[index], "out"):
            yield ("out", index), kind


def _plan(operator: str) -> Iterator[tuple[str, str, bool, tuple[int, ...], bool]]:
    """Form, dtype, leaf, samples and whether all kinds of write are wanted."""
    op = operators()[operator]
    supported = op.supported_backward_dtypes("cpu")
    real, complex_ = torch.float64 in supported, torch.complex128 in supported
    if real:
        yield FUNCTION, "float64", False, (0, 1, 2), True
        yield FUNCTION, "float64", True, (0,), False
        yield STRIDED, "float64", True, (0,), True
    if complex_:
        yield FUNCTION, "complex128", False, (0,) if real else (0, 1, 2), not real
    if op.get_inplace() is not None and op.supports_inplace_autograd:
        yield INPLACE, "float64" if real else "complex128", False, (0, 1), False


def subjects(operator: str) -> Iterator[Subject | Excluded]:
    """All samples of an operator with their cases, and those that can't be had."""
    if operator.startswith("jiterator"):
        yield Excluded(operator, FUNCTION, "-", None, "jiterator needs CUDA")
        return
    planned = list(_plan(operator))
    if not planned:
        yield Excluded(operator, FUNCTION, "-", None, "no backward for float64 or complex128 on CPU")
    for form, dtype, leaf, samples, full in planned:
        try:
            available = recipes(operator, form, DTYPES[dtype], SAMPLES)
        except Exception as error:  # a sample generator may need a library that's not here
            yield Excluded(operator, form, dtype, None, _reason(error))
            continue
        for sample in samples[: len(available)]:
            recipe = available[sample]
            try:
                tensors = probe(recipe, leaf)
            except Exception as error:
                yield Excluded(operator, form, dtype, sample, _reason(error))
                continue
            cases = tuple(
                Case(operator, form, dtype, sample, leaf, target, kind)
                for target, kind in _writes(tensors, leaf, full)
            )
            yield Subject(operator, form, dtype, sample, leaf, recipe, cases)


def _reason(error: Exception) -> str:
    if isinstance(error, UnusableError):
        return str(error)
    lines = str(error).splitlines() or [""]
    return f"forward raises {type(error).__name__}: {lines[0][:100]}"
