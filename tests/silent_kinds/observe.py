"""Run one program under each tool and say what the tool made of it."""

from __future__ import annotations

import importlib
import math
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch.autograd.gradcheck import GradcheckError, gradcheck

from pytest_inplace.engine.guard import examine
from pytest_inplace.engine.native import explain
from pytest_inplace.reports.findings import Finding
from tests.silent_kinds.kinds import Kind

Gradients = list["torch.Tensor | None"]
RIGHT = 1e-6
"""Below this relative error gradients count as right: another order of summation may change the last bits."""


@dataclass(frozen=True)
class Outcome:
    """What came of a program: the error that it raised, or how far off its gradients are.

    ``off`` is ``|g - r| / |r|`` in the 2-norm over all gradients ``g`` that it returns, for the right
    ones ``r``. ``traceback`` has the lines of the program that warnings named, as anomaly mode does.
    """

    error: str | None = None
    off: float | None = None
    traceback: frozenset[int] = frozenset()


@dataclass(frozen=True)
class Observation:
    """What each tool says about one kind of defect."""

    kind: Kind
    title: str
    saved_line: int | None
    written_line: int | None
    plain: Outcome
    anomaly: Outcome
    mutation: Outcome
    gradcheck: str
    plugin: Outcome
    findings: list[Finding] = field(default_factory=list)


def load(kind: Kind) -> ModuleType:
    return importlib.import_module(f"tests.silent_kinds.programs.{kind.name}")


def marked_line(module: ModuleType, mark: str) -> int | None:
    """The one line of a program that ends in ``# SAVED`` or ``# WRITTEN``, if there is one."""
    assert module.__file__ is not None
    with open(module.__file__, encoding="utf-8") as file:
        lines = [number for number, line in enumerate(file, 1) if line.rstrip().endswith(f"# {mark}")]
    assert len(lines) <= 1, f"{module.__name__} has more than one line marked {mark}"
    return lines[0] if lines else None


def relative_error(computed: Gradients, right: Gradients) -> float:
    gap = norm = 0.0
    for g, r in zip(computed, right, strict=True):
        assert (g is None) == (r is None)
        if g is not None and r is not None:
            gap += float((g.detach().double() - r.detach().double()).square().sum())
            norm += float(r.detach().double().square().sum())
    return math.sqrt(gap / norm)


def copies(gradients: Gradients) -> Gradients:
    return [None if g is None else g.detach().clone() for g in gradients]


@contextmanager
def fresh() -> Iterator[None]:
    """Start from nothing compiled: what dynamo refused to compile under one tool it never tries again."""
    if "torch._dynamo" in sys.modules:
        sys.modules["torch._dynamo"].reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def run(module: ModuleType, right: Gradients, tool: AbstractContextManager[Any]) -> Outcome:
    with fresh(), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            with tool:
                computed = copies(module.program())
        except Exception as error:
            text = "\n".join(str(warning.message) for warning in caught)
            return Outcome(error=type(error).__name__, traceback=lines_in(text, module))
    return Outcome(off=relative_error(computed, right))


def lines_in(text: str, module: ModuleType) -> frozenset[int]:
    return frozenset(int(number) for number in re.findall(rf'"{module.__file__}", line (\d+)', text))


def run_gradcheck(kind: Kind, module: ModuleType) -> str:
    """``torch.autograd.gradcheck`` on the program's ``forward``, as a function of its leaves, in float64."""
    if kind.no_gradcheck is not None:
        return f"n/a ({kind.no_gradcheck})"
    if _gradcheck(module, write=False) != "passes":
        return "n/a (fails without the defect, too)"
    return _gradcheck(module, write=True)


def _gradcheck(module: ModuleType, write: bool) -> str:
    leaves = [leaf.detach().double().requires_grad_() for leaf in module.leaves()]
    with fresh():
        try:
            gradcheck(partial(module.forward, write=write), leaves)
        except GradcheckError as error:
            return "fails" if "Jacobian mismatch" in str(error) else f"raises {type(error).__name__}"
        except Exception as error:
            return f"raises {type(error).__name__}"
    return "passes"


def observe(kind: Kind) -> Observation:
    module = load(kind)
    with fresh():
        right = copies(module.right())
    plain = run(module, right, nullcontext())
    anomaly = run(module, right, torch.autograd.set_detect_anomaly(True))
    mutation = run(module, right, torch.autograd.graph.allow_mutation_on_saved_tensors())
    gradcheck = run_gradcheck(kind, module)
    with fresh():
        examination = examine(module.program)
    findings = examination.findings
    if examination.error is not None:
        plugin = Outcome(error=type(examination.error).__name__)
        # The pytest side explains what PyTorch itself refused, which needs no watching.
        refusal = explain(examination.error)
        findings = findings if refusal is None else [*findings, refusal]
    else:
        plugin = Outcome(off=relative_error(examination.result, right))
    assert module.__doc__ is not None
    return Observation(
        kind,
        module.__doc__.strip(),
        marked_line(module, "SAVED"),
        marked_line(module, "WRITTEN"),
        plain,
        anomaly,
        mutation,
        gradcheck,
        plugin,
        findings,
    )
