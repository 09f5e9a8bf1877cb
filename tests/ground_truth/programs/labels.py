"""What is true of each program, from plain PyTorch alone: nothing here imports the plugin."""

from __future__ import annotations

import linecache
import math
import os
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from . import flagged
from .grammar import LATENT
from .model import INTER, JOINED, Program

RAISES = "raises"
WRONG = "wrong"
RIGHT = "right"
OTHER_ERROR = "other error"
DISCARDED = "discarded"
# Latent programs: what must be found though no backward ran.
EXPECT_LATENT = "latent"
EXPECT_NOTHING = "nothing"
UNSPECIFIED = "unspecified"

VERSION_MESSAGE = "has been modified by an inplace operation"

Gradients = list[list["torch.Tensor | None"]]
Run = Callable[[], Gradients]


@dataclass(frozen=True)
class Outcome:
    """What one run came to: the gradients of each backward pass in order, or an error."""

    gradients: Gradients | None
    error: BaseException | None

    @property
    def text(self) -> str:
        return f"{type(self.error).__name__}: {self.error}"


@dataclass(frozen=True)
class Lines:
    """Where the harm was done: lines that wrote to saved values that a backward pass then used."""

    written: frozenset[int]
    saved: frozenset[int]
    changed: bool  # whether any saved value or its version changed at all, used or not


@dataclass(frozen=True)
class Label:
    """The truth about one program."""

    kind: str
    program: Program = field(repr=False)
    plain: Outcome = field(repr=False)
    first_wrong: int | None = None  # which backward pass gave the first wrong gradient
    max_abs: float = 0.0  # the largest error in it; infinite where only one side is a finite number
    scale: float = 0.0  # the largest right gradient in it, for tolerances
    lines: Lines | None = None
    note: str = ""
    latent: str = ""


def keep_layout(tensor: torch.Tensor) -> torch.Tensor:
    """A detached copy with the same strides, overlaps and alignment, so that kernels add up in one order."""
    tensor = tensor.detach()
    if tensor.numel() == 0:
        return tensor.clone()
    extent = 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    shift = tensor.data_ptr() % 64 // tensor.element_size()
    memory = torch.empty(shift + extent, dtype=tensor.dtype)
    memory[shift:] = tensor.as_strided((extent,), (1,), tensor.storage_offset())
    return memory.as_strided(tensor.shape, tensor.stride(), shift)


def load(source: str, path: str | os.PathLike[str] | None = None) -> Run:
    """Compile a program; with ``path``, from a real file that tracebacks and tracers can find."""
    name = os.fspath(path) if path is not None else "<generated program>"
    if path is not None:
        with open(path, "w", encoding="utf-8") as file:
            file.write(source)
        linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    namespace: dict[str, Any] = {"__name__": "generated_program", "__file__": name}
    exec(compile(source, name, "exec"), namespace)
    run: Run = namespace["program"]
    return run


def run(program: Run, *, copies: bool = False) -> Outcome:
    """Run plain or, with ``copies``, with every saved value copied so that no later write can reach it."""
    hooks = torch.autograd.graph.saved_tensors_hooks(keep_layout, lambda copy: copy)
    with warnings.catch_warnings(), hooks if copies else nullcontext():
        warnings.simplefilter("ignore")
        try:
            return Outcome(program(), None)
        except Exception as error:
            return Outcome(None, error)


def equal(left: torch.Tensor | None, right: torch.Tensor | None) -> bool:
    """Bit for bit, except that any NaN equals any NaN."""
    if left is None or right is None:
        return left is right
    if left.shape != right.shape or left.dtype != right.dtype:
        return False
    same = (left == right) & (left.signbit() == right.signbit()) | (left.isnan() & right.isnan())
    return bool(same.all())


def all_equal(left: Gradients, right: Gradients) -> bool:
    return first_difference(left, right) is None


def first_difference(left: Gradients, right: Gradients) -> int | None:
    """Which backward pass, counted from 0, is the first one to differ."""
    for number, (a, b) in enumerate(zip(left, right, strict=True)):
        if len(a) != len(b) or not all(map(equal, a, b)):
            return number
    return None


def largest_error(left: list[torch.Tensor | None], right: list[torch.Tensor | None]) -> float:
    """The largest absolute difference of any element."""
    worst = 0.0
    for a, b in zip(left, right, strict=True):
        if a is None or b is None:
            worst = worst if a is b else math.inf
        elif not equal(a, b):
            gap = (a.double() - b.double()).abs()
            differs = ~((a == b) | (a.isnan() & b.isnan()))
            gap = torch.where(differs, gap.nan_to_num(nan=math.inf, posinf=math.inf), 0.0)
            worst = max(worst, float(gap.max()))
    return worst


def label(program: Program) -> Label:
    """The truth about a program, with lines where something is wrong."""
    from .lines import harmful_lines

    calm = run(load(program.source(writes=False)))
    if calm.gradients is None:
        return Label(DISCARDED, program, calm, note=f"fails without its writes: {calm.text[:100]}")
    again = run(load(program.source(writes=False)), copies=program.group not in flagged.GROUPS)
    if again.gradients is None or not all_equal(calm.gradients, again.gradients):
        return Label(DISCARDED, program, calm, note="not reproducible without its writes")
    plain = run(load(program.source()))
    if plain.gradients is None:
        raised = isinstance(plain.error, RuntimeError) and VERSION_MESSAGE in str(plain.error)
        found = Label(RAISES if raised else OTHER_ERROR, program, plain)
    else:
        found = _compare(program, plain, calm.gradients)
    if found.kind in (RAISES, WRONG) or program.group == LATENT:
        lines = harmful_lines(program.source())
        found = replace(found, lines=lines)
    if program.group == LATENT:
        found = replace(found, latent=_expected_latent(found))
    return found


def describe(found: Label) -> str:
    """Label and source of a program, for people."""
    facts = [f"{found.program.name}: {found.kind}", found.note]
    if found.plain.error is not None:
        facts.append(found.plain.text)
    if found.first_wrong is not None:
        facts.append(f"backward {found.first_wrong} is wrong by {found.max_abs:.6g}")
    if found.latent:
        facts.append(f"expected without its last backward: {found.latent}")
    if found.lines is not None:
        facts.append(f"written in {sorted(found.lines.written)}, saved in {sorted(found.lines.saved)}")
    numbered = [f"{n:3} {line}" for n, line in enumerate(found.program.source().splitlines(), 1)]
    return "\n".join([*filter(None, facts), *numbered])


def _compare(program: Program, plain: Outcome, calm: Gradients) -> Label:
    assert plain.gradients is not None
    if program.group in flagged.GROUPS:
        truth = calm
    else:
        copied = run(load(program.source()), copies=True)
        if copied.gradients is None:
            return Label(
                DISCARDED, program, plain, note=f"only the run on copies raises: {copied.text[:100]}"
            )
        truth = copied.gradients
        if program.late and not all_equal(truth, calm):
            # The two independent truths contradict each other: one of them is misconceived.
            return Label(DISCARDED, program, plain, note="truths differ")
    first = first_difference(plain.gradients, truth)
    if first is None:
        return Label(RIGHT, program, plain)
    right = truth[first]
    scale = max(
        (float(g.abs().nan_to_num().max()) for g in right if g is not None and g.numel()), default=0.0
    )
    error = largest_error(plain.gradients[first], right)
    if error == 0.0:
        # Neither harmless to the bit nor wrong by any amount: a verdict either way would be right.
        return Label(DISCARDED, program, plain, note="differs in the sign of a zero only")
    return Label(WRONG, program, plain, first, error, scale)


def _expected_latent(found: Label) -> str:
    """What to find if the closing backward is left out: an overwritten intermediate, but no updated leaf."""
    assert found.lines is not None
    if found.kind == DISCARDED or found.kind == OTHER_ERROR:
        return UNSPECIFIED
    if not found.lines.changed:
        return EXPECT_NOTHING
    if found.program.target == JOINED:
        return UNSPECIFIED  # the write made a data buffer part of the graph, which wasn't complete then
    if found.program.target == INTER:
        return EXPECT_LATENT if found.kind in (RAISES, WRONG) else UNSPECIFIED
    return EXPECT_NOTHING if found.program.late else UNSPECIFIED
