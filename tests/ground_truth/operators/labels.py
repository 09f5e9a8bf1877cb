"""What is true of each case, from plain PyTorch alone: nothing here imports the plugin."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from .cases import Case, Excluded, Subject, subjects
from .layout import keep_layout
from .programs import Gradients, program, quietly
from .writes import IN_GRAPH, NONE, NUMPY, RESTORED, SAME_VALUE, SILENT, VERSION

RAISES = "raises"
WRONG = "wrong"
RIGHT = "right"
OTHER_ERROR = "other error"
# Wrong by the gradients without the write, though saved-tensor hooks give the same wrong ones: the backward
# pass reads values that were never packed.
HIDDEN = "hidden"
KINDS = (RAISES, WRONG, RIGHT, OTHER_ERROR, HIDDEN)

VERSION_MESSAGE = "has been modified by an inplace operation"


@dataclass(frozen=True)
class Outcome:
    """What one run of a program came to."""

    gradients: Gradients | None
    error: BaseException | None


@dataclass(frozen=True)
class Label:
    """The truth of a case."""

    kind: str
    plain: Outcome
    max_abs: float = 0.0  # largest error of any gradient element; infinite where only one side is a number
    per_gradient: tuple[float, ...] = ()
    either: bool = False  # right but for the sign of a zero: calling that wrong is no mistake


def run_plain(run: Callable[[], Gradients]) -> Outcome:
    """Run without any hooks."""
    with quietly():
        try:
            return Outcome(run(), None)
        except Exception as error:
            return Outcome(None, error.with_traceback(None))


def run_untouched(run: Callable[[], Gradients]) -> Outcome:
    """Run with every saved value copied when it's saved, so that no later write can reach it."""
    with torch.autograd.graph.saved_tensors_hooks(keep_layout, lambda copy: copy):
        return run_plain(run)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    tensor = tensor.detach().resolve_conj().resolve_neg()
    return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def difference(left: torch.Tensor | None, right: torch.Tensor | None) -> float:
    """The largest absolute difference: NaN equals NaN, infinities of a sign are equal, 0.0 equals -0.0."""
    if left is None or right is None:
        return 0.0 if left is right else math.inf
    if left.shape != right.shape or left.dtype != right.dtype:
        return math.inf
    a, b = _bits(left), _bits(right)
    same = (a == b) | (a.isnan() & b.isnan())
    if bool(same.all()):
        return 0.0
    gap = torch.where(same, 0.0, (a - b).abs())
    if left.is_complex():
        gap = torch.linalg.vector_norm(gap, dim=-1)
    return float(torch.where(gap.isnan(), math.inf, gap).max())


def _pairs(left: Gradients, right: Gradients) -> list[tuple[torch.Tensor, torch.Tensor]]:
    return [(a, b) for a, b in zip(left, right, strict=True) if a is not None and b is not None]


def _zero_signs_differ(left: Gradients, right: Gradients) -> bool:
    pairs = [
        (_bits(a), _bits(b)) for a, b in zip(left, right, strict=True) if a is not None and b is not None
    ]
    return any(bool(((a == 0) & (b == 0) & (a.signbit() != b.signbit())).any()) for a, b in pairs)


def _close(left: Gradients, right: Gradients) -> bool:
    return all(torch.allclose(a, b, rtol=1e-9, atol=1e-9, equal_nan=True) for a, b in _pairs(left, right))


def differences(left: Gradients, right: Gradients) -> tuple[float, ...]:
    """`difference` for each gradient."""
    return tuple(difference(a, b) for a, b in zip(left, right, strict=True))


@dataclass(frozen=True)
class Screened:
    """The gradients of a sample without a write, and whether runs on copies give the same ones."""

    none: Gradients
    copies_agree: bool


def screen(subject: Subject) -> Screened | str:
    """The gradients without a write, or why there's no truth to compare bit for bit."""
    run = program(subject.recipe, subject.leaf, None, NONE)
    first, second = run_plain(run), run_plain(run)
    for outcome in (first, second):
        if outcome.gradients is None:
            lines = str(outcome.error).splitlines() or [""]
            return f"plain backward raises {type(outcome.error).__name__}: {lines[0][:100]}"
    assert first.gradients is not None
    assert second.gradients is not None
    if any(differences(first.gradients, second.gradients)):
        return "plain gradients differ from run to run"
    agree = True
    for _ in range(2):
        copied = run_untouched(run)
        if copied.gradients is None:
            return f"the run on copies raises {type(copied.error).__name__}: {str(copied.error)[:100]}"
        agree &= not any(differences(first.gradients, copied.gradients))
    return Screened(first.gradients, agree)


def label(case: Case, subject: Subject, screened: Screened) -> Label | str:
    """The truth of `case`, or why there's none."""
    run = program(subject.recipe, case.leaf, case.target, case.write)
    plain = run_plain(run)
    if plain.gradients is None:
        known = isinstance(plain.error, RuntimeError) and VERSION_MESSAGE in str(plain.error)
        return Label(RAISES if known else OTHER_ERROR, plain)
    if not screened.copies_agree:
        # The operator writes to what it saved, so a copy from the time of saving is no truth. The gradients
        # without a write still are, for writes that the graph doesn't know of.
        if case.write in (IN_GRAPH, VERSION, SAME_VALUE):
            return "copies of saved values give other gradients even without a write"
        truth = screened.none
    else:
        untouched = run_untouched(run)
        if untouched.gradients is None:
            raise RuntimeError(f"{case.id}: only the run on copies raises: {untouched.error!r}")
        truth = untouched.gradients
        # A write the graph doesn't know of can't change the true gradients, which gives a second truth. If
        # the counter moves, only up to rounding: views of the target then get another backward function.
        if case.write in (SILENT, NUMPY, RESTORED, NONE):
            second = not any(differences(truth, screened.none))
        else:
            second = case.write == IN_GRAPH or _close(truth, screened.none)
        if not second:
            errors = differences(truth, screened.none)
            return Label(HIDDEN, plain, max(errors), errors)
    errors = differences(plain.gradients, truth)
    kind = WRONG if any(errors) else RIGHT
    either = kind == RIGHT and _zero_signs_differ(plain.gradients, truth)
    return Label(kind, plain, max(errors, default=0.0), errors, either)


@contextmanager
def single_thread() -> Iterator[None]:
    """Sums split over threads may be added up in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def labelled(operator: str, only: Case | None = None) -> Iterator[tuple[Case, Subject, Label] | Excluded]:
    """Every case of an operator (or `only` one) with its label, and what was left out."""
    with single_thread():
        for subject in subjects(operator):
            if isinstance(subject, Excluded):
                yield subject
                continue
            wanted = subject.cases if only is None else tuple(case for case in subject.cases if case == only)
            if not wanted:
                continue
            screened = screen(subject)
            if isinstance(screened, str):
                yield subject.excluded(screened)
                continue
            for case in wanted:
                truth = label(case, subject, screened)
                if isinstance(truth, str):
                    yield subject.excluded(f"{case.write}: {truth}")
                else:
                    yield case, subject, truth
