"""Whether an edited program computes what the program was meant to: the course of both, compared.

The *meant* course is that of the unedited program with every backward pass made to use the values that were
saved. An edit is proved if the edited program, left alone, has the same outputs and gradients in all of its
backward passes and leaves the same values in all leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_inplace.engine import values
from pytest_inplace.engine.gradients import BackwardCall, Judge, Judgement, Substitutes
from pytest_inplace.engine.ledger import Record
from pytest_inplace.engine.microscope import Microscope
from pytest_inplace.engine.quiet import quiet
from pytest_inplace.reports import call_sites

if TYPE_CHECKING:
    import torch

TOLERANCE = 1e-5
"""Relative to a tensor's greatest element: another order of summation may change the last bits."""
MAX_ELEMENTS = 50_000_000
MAX_LEAVES = 1000

Tensors = list["torch.Tensor"]


@dataclass
class Course:
    """What a program computed: for each backward pass its outputs and gradients, and the leaves in the end.

    ``corrected`` has the place (path and line) of each save that was made to hold what had been saved.
    """

    backwards: list[tuple[Tensors, Tensors]] = field(default_factory=list)
    leaves: Tensors = field(default_factory=list)
    corrected: list[tuple[str, int]] = field(default_factory=list)
    incomplete: str | None = None


class CourseRecorder:
    """Records the course of a program between :meth:`start` and :meth:`stop`, changing nothing."""

    def __init__(self) -> None:
        self.course = Course()
        self._leaves: dict[int, torch.Tensor] = {}
        self._elements = 0
        self._engine: Callable[..., Any] | None = None
        self.lens: Corrective | None = None

    def start(self) -> None:
        import torch

        autograd: Any = torch.autograd
        self._engine = engine = autograd._engine_run_backward

        def run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            call = BackwardCall(outputs, args[0], args[3] or (), None, kwargs.get("accumulate_grad", False))
            leaves = call.leaves()
            before = self._snapshots([leaf.grad for leaf in leaves])
            with self._as_saved():
                result = engine(outputs, *args, **kwargs)
            gradients = [leaf.grad for leaf in leaves] if call.accumulates else list(result)
            self._keep(call, leaves, before, gradients)
            return result

        autograd._engine_run_backward = run_backward

    def stop(self) -> None:
        import torch

        autograd: Any = torch.autograd
        if self._engine is not None:
            autograd._engine_run_backward, self._engine = self._engine, None
        self.course.leaves = [t for t in self._snapshots(list(self._leaves.values())) if t is not None]
        self._leaves.clear()

    @contextmanager
    def _as_saved(self) -> Iterator[None]:
        if self.lens is None:
            yield
            return
        with self.lens.as_saved(self.course):
            yield

    def _snapshots(self, tensors: list[torch.Tensor | None]) -> list[torch.Tensor | None]:
        with quiet():
            return [None if t is None else values.snapshot(t) for t in tensors]

    def _keep(
        self, call: BackwardCall, leaves: Tensors, before: list[torch.Tensor | None], after: list[Any]
    ) -> None:
        gradients = []
        for was, gradient in zip(before, self._snapshots(after), strict=True):
            if gradient is None:
                continue
            if was is not None and call.accumulates and was.shape == gradient.shape:
                with quiet():
                    gradient = gradient - was
            gradients.append(gradient)
        outputs = [
            t for t in self._snapshots([o for o in call.outputs if hasattr(o, "shape")]) if t is not None
        ]
        self._elements += sum(t.numel() for t in (*gradients, *outputs))
        for leaf in leaves:
            self._leaves.setdefault(id(leaf), leaf)
        if self._elements > MAX_ELEMENTS or len(self._leaves) > MAX_LEAVES:
            self.course.incomplete = "the test computes too many gradients to compare them all"
        if self.course.incomplete is None:
            self.course.backwards.append((outputs, gradients))


class Corrective(Microscope):
    """Lets each backward pass of the program use what had been saved, whatever was written since."""

    def __init__(self) -> None:
        super().__init__(None, lines=False)
        self._right: Substitutes = {}
        self._sites: list[tuple[str, int]] = []

    def _judge(
        self, judge: Judge, call: BackwardCall, changed: dict[int, tuple[Any, Record]], creates_graph: bool
    ) -> None:
        super()._judge(_Noting(self), call, changed, creates_graph=False)
        sites = [call_sites.resolve(entry.where) for entry, _ in changed.values()]
        self._sites = [(site.path, site.line) for site in sites if site is not None]

    def note(self, right: Substitutes) -> None:
        self._right = dict(right)

    @contextmanager
    def as_saved(self, course: Course) -> Iterator[None]:
        """The backward pass that is about to run is given the values that were saved."""
        right, self._right = self._right, {}
        if not right:
            yield
            return
        course.corrected += self._sites
        self._substitute(right)
        try:
            yield
        finally:
            self._substitute(None)


class _Noting(Judge):
    """Runs no trial: notes what one would have used for the right gradients."""

    def __init__(self, lens: Corrective) -> None:
        self._lens = lens

    def judge(
        self, call: BackwardCall, right: Substitutes, now: Substitutes, groups: dict[Any, list[Any]]
    ) -> Judgement:
        self._lens.note(right)
        return Judgement((), frozenset(), 0)


def difference(meant: Course, found: Course) -> str | None:
    """Why the course found is not the one that was meant, or ``None`` if it is."""
    incomplete = meant.incomplete or found.incomplete
    if incomplete is not None:
        return incomplete
    if not meant.backwards:
        return "the test runs no backward pass whose gradients could be compared"
    if len(meant.backwards) != len(found.backwards):
        return f"the test runs {len(found.backwards)} backward passes where {len(meant.backwards)} were meant"
    left = list(found.backwards)
    for outputs, gradients in meant.backwards:  # an edit may exchange two of them, so any may match
        same_outputs = [b for b in left if _same(outputs, b[0])]
        if not same_outputs:
            return "another loss is computed"
        same = next((b for b in same_outputs if _same(gradients, b[1])), None)
        if same is None:
            return "the gradients are not the right ones"
        left = [b for b in left if b is not same]
    return None if _same(meant.leaves, found.leaves) else "the leaves end with other values"


def _same(some: Tensors, others: Tensors) -> bool:
    """Whether these are the same tensors up to rounding, in whatever order."""
    if len(some) != len(others):
        return False
    left = list(others)
    for tensor in some:
        match = next((i for i, other in enumerate(left) if _close(tensor, other)), None)
        if match is None:
            return False
        del left[match]
    return True


def _close(a: torch.Tensor, b: torch.Tensor) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype or a.layout != b.layout:
        return False
    if values.same_values(a, b):
        return True
    if not (a.is_floating_point() or a.is_complex()) or not a.numel():
        return False
    wide, other = values.widened(a), values.widened(b)
    scale = wide.abs().max()
    return bool(scale.isfinite() and (wide - other).abs().max() <= TOLERANCE * scale)
