"""A backward pass of a backward pass over every operator: the same under the check as without it.

The nodes of the first backward pass save again what they had unpacked, which hooks see as copies.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch

from .cases import DTYPES
from .labels import Outcome, run_plain
from .programs import FUNCTION, SEED, STRIDED, Gradients, Recipe, operators, projection, recipes

NOTHING = "nothing"
VERSION = "version moved"
SILENT = "silent"


@dataclass(frozen=True)
class Second:
    """One operator on one sample, with a write between the two backward passes or none."""

    operator: str
    dtype: str
    form: str
    write: str
    run: Callable[[], Gradients]

    def __str__(self) -> str:
        return f"{self.operator}, {self.dtype}, {self.form}, {self.write}"


def cases(operator: str) -> Iterator[Second]:
    """The programs of an operator."""
    supported = operators()[operator].supported_backward_dtypes("cpu")
    for dtype, kind in DTYPES.items():
        for form in (FUNCTION, STRIDED):
            try:
                found = recipes(operator, form, kind, 2) if kind in supported else ()
            except Exception:  # the other test says which operators cannot be had
                continue
            for recipe in found:
                for write in (NOTHING, VERSION, SILENT):
                    yield Second(operator, dtype, form, write, _program(recipe, write))


def differences(case: Second, examine: Callable[[Callable[[], Gradients]], Outcome]) -> list[str]:
    """How the run under the check differs from the plain one, in words."""
    plain = run_plain(case.run)
    if not _same(plain, run_plain(case.run)):
        return []  # its own kernels do not give the same twice
    checked = examine(case.run)
    if _same(plain, checked):
        return []
    if checked.error is not None or plain.error is not None:
        return [f"{case}: {checked.error!r} instead of {plain.error!r}"]
    return [f"{case}: other gradients"]


def _program(recipe: Recipe, write: str) -> Callable[[], Gradients]:
    def run() -> Gradients:
        torch.manual_seed(SEED)
        roots, given = recipe.fresh(leaf=False)
        loss = projection(recipe.call(given)[1])
        first = torch.autograd.grad(loss * loss + loss, roots, create_graph=True, allow_unused=True)
        kept = tuple(None if g is None else g.detach().clone() for g in first)
        if write == VERSION:
            torch.autograd.graph.increment_version(given[0])
        elif write == SILENT:
            given[0].data.mul_(1.25)
        alive = [g.abs().square().sum() for g in first if g is not None and g.requires_grad]
        if not alive:
            return kept
        return (*kept, *torch.autograd.grad(torch.stack(alive).sum(), roots, allow_unused=True))

    return run


def _same(a: Outcome, b: Outcome) -> bool:
    if a.gradients is None or b.gradients is None:
        return (type(a.error), str(a.error)) == (type(b.error), str(b.error))
    return len(a.gradients) == len(b.gradients) and all(map(_equal, a.gradients, b.gradients))


def _equal(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    return torch.equal(a.nan_to_num(), b.nan_to_num()) and torch.equal(a.isnan(), b.isnan())
