"""The verdict: would the gradients of this backward pass be the same from untouched values?

Just before a backward pass runs, its gradients are computed twice with the graph kept: from the values
as they were saved and from the values as they are now. Nothing is accumulated anywhere.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from pytest_inplace.engine import names, values
from pytest_inplace.engine.contexts import Contexts
from pytest_inplace.engine.inputs import graph_below, roots
from pytest_inplace.engine.quiet import quiet
from pytest_inplace.engine.releases import set_version
from pytest_inplace.reports.findings import GradientError

if TYPE_CHECKING:
    import torch

PICTURES = 3
Substitutes = dict[Any, Any]
"""What a trial run is to use instead: the ordinal of a save -> the tensor that unpack returns for it; the key
of something kept outside autograd -> what to put in its place, or ``None`` to leave it as it is."""


@dataclass
class Judgement:
    """The gradients that differ, and which groups of changed saves make them differ."""

    errors: tuple[GradientError, ...]
    harmful: frozenset[Any]
    leaves: int
    relative_error: float | None = None


@dataclass
class BackwardCall:
    """The arguments of one run of the autograd engine, as ``torch.autograd`` passes them."""

    outputs: Sequence[Any]
    grad_outputs: Sequence[torch.Tensor | None]
    inputs: Sequence[Any]
    frame: FrameType | None
    accumulates: bool = False
    """Whether the gradients go into ``.grad``, as with ``backward()``, or are captured."""
    accumulating: bool = False
    """Whether a trial must go the way of ``.grad``.

    Reentrant checkpoints refuse to capture gradients, and what users write like these cannot do it. And a
    gradient that is written in place does no harm to a leaf that has copied it into its ``.grad`` by then,
    while a captured one would show the write.
    """

    @functools.cached_property
    def nodes(self) -> list[Any]:
        """The graph that the pass runs over."""
        return graph_below(roots(self.outputs))

    @functools.cached_property
    def contexts(self) -> Contexts:
        """Of the custom Functions in the graph."""
        return Contexts(self.nodes)

    @functools.cached_property
    def hidden_leaves(self) -> list[torch.Tensor]:
        """The leaves that only the backward of a Function finds, which runs a backward pass of its own."""
        return self.contexts.hidden_leaves(self.leaves())

    def leaves(self) -> list[torch.Tensor]:
        """Where gradients end: the given inputs, or every leaf below the outputs."""
        if self.inputs:
            return list(self.inputs)
        found: dict[int, torch.Tensor] = {}
        seen: set[Any] = set()
        stack = []
        for output in self.outputs:
            node = getattr(output, "grad_fn", None) or getattr(output, "node", None)
            if node is not None:
                stack.append(node)
            elif getattr(output, "requires_grad", False):
                found[id(output)] = output
        while stack:
            node = stack.pop()
            if node in seen:
                continue
            seen.add(node)
            variable = getattr(node, "variable", None)
            if variable is not None and hasattr(variable, "requires_grad"):
                found[id(variable)] = variable
            stack.extend(child for child, _ in node.next_functions if child is not None)
        return list(found.values())


class Judge:
    """Runs backward passes on trial. ``substituting`` makes unpack return other tensors meanwhile."""

    def __init__(
        self, engine: Callable[..., Any], substituting: Callable[[Substitutes | None], None]
    ) -> None:
        self._engine = engine
        self._substituting = substituting

    def judge(
        self,
        call: BackwardCall,
        right: Substitutes,
        now: Substitutes,
        groups: dict[Any, list[Any]],
    ) -> Judgement:
        """Compare the gradients from the ``right`` values with those from the values ``now``.

        Args:
            call: the backward pass about to run.
            right: for each changed save a copy of what was saved.
            now: for each changed save a copy of what it holds now, in the same layout.
            groups: the changed saves by the memory they share, so that each write is judged alone.

        Raises:
            Exception: whatever the backward pass raises on trial.
        """
        leaves = call.leaves()
        if call.accumulating:
            leaves += call.hidden_leaves
        expected = self._gradients(call, leaves, right)
        computed = self._gradients(call, leaves, now)
        errors = _errors(call, leaves, expected, computed)
        if not errors:
            return Judgement((), frozenset(), len(leaves))
        harmful: set[Any] = set()
        if len(groups) == 1 or len(groups) > 64:
            harmful.update(groups)
        else:
            for key, ordinals in groups.items():
                mixed = {**right, **{ordinal: now[ordinal] for ordinal in ordinals}}
                if _differ(expected, self._gradients(call, leaves, mixed)):
                    harmful.add(key)
        return Judgement(
            errors, frozenset(harmful or groups), len(leaves), _relative_error(expected, computed)
        )

    def run(self, call: BackwardCall) -> None:
        """Run the backward pass once on trial, from the values as they are."""
        self._gradients(call, call.leaves(), {})

    def build(self, call: BackwardCall, substitutes: Substitutes) -> None:
        """Run the backward pass once on trial with ``create_graph=True``; the graph is thrown away."""
        with self._on_trial(call, substitutes) as begin:
            self._engine(
                tuple(call.outputs), begin, True, True, tuple(call.leaves()),
                allow_unreachable=True, accumulate_grad=False,
            )  # fmt: skip

    def _gradients(
        self, call: BackwardCall, leaves: list[torch.Tensor], substitutes: Substitutes
    ) -> list[torch.Tensor | None]:
        with self._on_trial(call, substitutes) as begin:
            if call.accumulating:
                return self._accumulated(call, leaves, begin)
            # torch.autograd.grad's own way: capture the gradients, keep the graph, accumulate nothing.
            return list(
                self._engine(
                    tuple(call.outputs), begin, True, False, tuple(leaves),
                    allow_unreachable=True, accumulate_grad=False,
                )
            )  # fmt: skip

    @contextlib.contextmanager
    def _on_trial(
        self, call: BackwardCall, substitutes: Substitutes
    ) -> Iterator[tuple[torch.Tensor | None, ...]]:
        """Put the substitutes in place. Yields gradients to begin with, which a backward may change."""
        with quiet():
            begin = tuple(g if g is None else values.snapshot(g) for g in call.grad_outputs)
        restore = call.contexts.remember()
        hidden = [(leaf, leaf.grad) for leaf in call.hidden_leaves]
        for leaf, _ in hidden:
            leaf.grad = None
        self._substituting(substitutes)
        try:
            yield begin
        finally:
            self._substituting(None)
            restore()
            for leaf, gradient in hidden:
                leaf.grad = gradient

    def _accumulated(
        self, call: BackwardCall, leaves: list[torch.Tensor], begin: tuple[torch.Tensor | None, ...]
    ) -> list[torch.Tensor | None]:
        """The gradients by way of ``.grad``; that, and what hooks do to the leaves, is put back."""
        import torch

        kept = [leaf.grad for leaf in leaves]
        with quiet():
            contents = [(values.snapshot(leaf), leaf._version) for leaf in leaves]
        try:
            for leaf, gradient in zip(leaves, kept, strict=True):
                # Where there is a gradient, the new one is added to it, else it may be kept as it is.
                leaf.grad = None if gradient is None else torch.zeros_like(gradient)
            self._engine(
                tuple(call.outputs), begin, True, False, tuple(call.inputs),
                allow_unreachable=True, accumulate_grad=True,
            )  # fmt: skip
            return [leaf.grad for leaf in leaves]
        finally:
            with quiet():
                for leaf, gradient, (content, version) in zip(leaves, kept, contents, strict=True):
                    leaf.grad = gradient
                    if not values.same_values(leaf, content):  # a hook that steps the optimizer
                        leaf.data.copy_(content)
                    if leaf._version != version:
                        set_version(leaf, version)


def _errors(
    call: BackwardCall,
    leaves: list[torch.Tensor],
    right: list[torch.Tensor | None],
    computed: list[torch.Tensor | None],
) -> tuple[GradientError, ...]:
    """The gradients that differ, the worst first."""
    found = []
    known: dict[int, str] | None = None
    with quiet():
        for i, (r, g) in enumerate(zip(right, computed, strict=True)):
            if r is None or g is None or not _differs(r, g):
                continue
            if known is None:
                known = names.leaf_names(call.frame)
            error = values.gradient_error(known.get(id(leaves[i]), f"leaf {i}"), r, g, picture=True)
            if error is not None:
                found.append(error)
    found.sort(key=lambda e: -(e.max_abs if e.max_abs is not None else float("inf")))
    # What is shown of the worst would be much for hundreds of parameters.
    return tuple(e if i < PICTURES else dataclasses.replace(e, histogram=None) for i, e in enumerate(found))


def _differ(right: list[torch.Tensor | None], computed: list[torch.Tensor | None]) -> bool:
    """Whether any gradient is another one, which is all that is asked about one of several writes."""
    with quiet():
        return any(
            r is not None and g is not None and _differs(r, g) for r, g in zip(right, computed, strict=True)
        )


def _differs(right: torch.Tensor, computed: torch.Tensor) -> bool:
    return not values.same_values(right, computed) and not _signed_zeros_only(right, computed)


def _relative_error(right: list[torch.Tensor | None], computed: list[torch.Tensor | None]) -> float | None:
    """``|g - r| / |r|`` in the 2-norm over all leaves, or ``None`` where that is no finite number."""
    gap = norm = 0.0
    with quiet():
        for r, g in zip(right, computed, strict=True):
            if r is None or g is None or r.shape != g.shape:
                continue
            wide = values.widened(r)
            gap += float((values.widened(g) - wide).abs().square().sum())
            norm += float(wide.abs().square().sum())
    if not norm or not math.isfinite(gap) or not math.isfinite(norm):
        return None
    return math.sqrt(gap / norm)


def _signed_zeros_only(right: torch.Tensor, computed: torch.Tensor) -> bool:
    """Whether the two differ in nothing but the sign of zeros or the payload of NaNs."""
    if right.shape != computed.shape or values.freed(right) or values.freed(computed):
        return False
    r, g = values.widened(right), values.widened(computed)
    return bool(((r == g) | ((r != r) & (g != g))).all())
