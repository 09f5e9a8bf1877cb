"""The plugin's verdicts about random training programs against the truth from plain PyTorch.

``PYTEST_INPLACE_EXHAUSTIVE=1`` runs all blocks of programs instead of the first few.
``PYTEST_INPLACE_FLAGGED=hooks,offload,checkpoint,function`` adds groups of programs whose saved values
an outer pair of saved-tensor hooks doesn't see.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from . import flagged
from .compare import disagreements
from .grammar import LATENT, MAIN, from_seed, generate
from .labels import DISCARDED, OTHER_ERROR, RAISES, RIGHT, WRONG, describe, label
from .model import HEADER, Program, Statement

if TYPE_CHECKING:
    import random
    from collections.abc import Iterator

EXHAUSTIVE = os.environ.get("PYTEST_INPLACE_EXHAUSTIVE") == "1"
FLAGGED = [group for group in os.environ.get("PYTEST_INPLACE_FLAGGED", "").split(",") if group]
PER_BLOCK = 50
# (blocks in a quick run, all blocks)
BLOCKS = {MAIN: (8, 80), LATENT: (1, 10), **dict.fromkeys(flagged.GROUPS, (1, 6))}


def _blocks() -> list[tuple[str, int]]:
    groups = (MAIN, LATENT, *FLAGGED)
    return [(group, block) for group in groups for block in range(BLOCKS[group][EXHAUSTIVE])]


@pytest.fixture(autouse=True)
def single_thread() -> Iterator[None]:
    """Sums split over threads may be added up in another order."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def check(program: Program) -> str | None:
    """What the plugin gets wrong about a program, with everything needed to look at it."""
    found = label(program)
    complaints = disagreements(found)
    return "\n".join([*complaints, describe(found)]) if complaints else None


@pytest.mark.parametrize(("group", "block"), _blocks())
def test_block_of_programs(group: str, block: int) -> None:
    seeds = range(block * PER_BLOCK, (block + 1) * PER_BLOCK)
    failures = [text for seed in seeds if (text := check(from_seed(seed, group)))]
    # A defect shows in many programs; a few are enough to read.
    assert not failures, f"{len(failures)} of {PER_BLOCK} programs\n\n" + "\n\n".join(failures[:3])


@given(st.randoms(use_true_random=False))
@settings(
    max_examples=400 if EXHAUSTIVE else 40,
    derandomize=True,
    deadline=None,
    database=None,
    phases=(Phase.generate, Phase.shrink),
    suppress_health_check=list(HealthCheck),
)
def test_any_program(rng: random.Random) -> None:
    failure = check(generate(rng))
    assert failure is None, failure


def test_labels_are_a_good_mix() -> None:
    found = [label(from_seed(seed)) for seed in range(400)]
    kinds = Counter(f.kind for f in found)
    assert kinds[RAISES] >= 0.12 * len(found), kinds
    assert kinds[WRONG] >= 0.16 * len(found), kinds
    assert kinds[RIGHT] >= 0.4 * len(found), kinds
    assert kinds[DISCARDED] <= 0.02 * len(found), kinds
    # Removing late writes and copying what is saved are two ways to the untouched gradients.
    assert not [f.program.name for f in found if f.note == "truths differ"]
    assert sum(f.program.late and f.kind == WRONG for f in found) >= 10


def test_labels_need_no_plugin() -> None:
    code = "import sys, tests.ground_truth.programs.labels; sys.exit('pytest_inplace' in sys.modules)"
    path = os.pathsep.join(filter(None, sys.path))
    environment = {**os.environ, "PYTHONPATH": path}
    assert subprocess.run([sys.executable, "-c", code], env=environment, check=False).returncode == 0


def by_hand(*lines: str, group: str = MAIN) -> Program:
    """A program whose lines that end in ``# write`` are its writes; the first one is line ``FIRST``."""
    statements = [Statement(line.strip(), "# write" in line, indent=0) for line in lines]
    return Program("by hand", group, (Statement("grads = []"), *statements, Statement("return grads")))


FIRST = len(HEADER) + 5  # two empty lines, ``def``, ``grads = []``
BEFORE = ("w = torch.ones(3, requires_grad=True)", "h = w * 2.0", "y = (h * h).sum()")
AFTER = ("y.backward()", "grads.append([w.grad.clone()])")


@pytest.mark.parametrize(
    ("write", "kind", "error"),
    [
        ("h.data.mul_(2.0)", WRONG, 8.0),
        ("h.detach().numpy()[0] = 5.0", WRONG, 12.0),
        ("h.mul_(2.0)", RAISES, 0.0),
        ("h.mul_(1.0)", RAISES, 0.0),
        ("h.data.mul_(1.0)", RIGHT, 0.0),
        ("w.data.mul_(2.0)", RIGHT, 0.0),
        ("w.mul_(2.0)", OTHER_ERROR, 0.0),
    ],
)
def test_labels_by_hand(write: str, kind: str, error: float) -> None:
    found = label(by_hand(*BEFORE, f"{write}  # write", *AFTER))
    assert (found.kind, found.max_abs) == (kind, error), describe(found)
    if kind in (RAISES, WRONG):
        assert found.lines is not None
        assert [set(found.lines.written), set(found.lines.saved)] == [{FIRST + 3}, {FIRST + 2}], describe(
            found
        )


def test_lines_leave_out_writes_that_do_no_harm() -> None:
    lines = ["kept = h.detach().clone()", "h.data.zero_()  # write", "h.data.copy_(kept)  # write"]
    found = label(by_hand(*BEFORE, *lines, *AFTER))
    assert found.kind == RIGHT
    found = label(
        by_hand(
            *BEFORE, *lines, "k = w.exp()", "z = k.sum()", "k.data.zero_()  # write", "z.backward()", *AFTER
        )
    )
    assert found.kind == WRONG
    assert found.lines is not None
    assert [set(found.lines.written), set(found.lines.saved)] == [{FIRST + 8}, {FIRST + 6}]


def test_lines_see_what_a_second_backward_pass_saved_before_it_raised() -> None:
    found = label(
        by_hand(
            "w = torch.tensor([0.5, 2.0], requires_grad=True)",
            "v = torch.ones(2, requires_grad=True)",
            "h = w * 2.0",
            "(g,) = torch.autograd.grad((h.sin() * v).exp().sum(), w, create_graph=True)",
            "h.data = torch.ones(2)  # write",
            "with torch.no_grad(): v.mul_(2.0)  # write",
            "(g * g).sum().backward()",
            "grads.append([w.grad.clone()])",
        )
    )
    assert found.kind == RAISES
    assert found.lines is not None
    assert set(found.lines.written) == {FIRST + 4, FIRST + 5}, describe(found)


def test_lines_know_that_of_an_output_an_alias_is_kept() -> None:
    swapped = ("h = w.exp()", "y = h.sum()", "h.data = torch.zeros(3)  # write", *AFTER)
    found = label(by_hand(BEFORE[0], *swapped))
    assert found.kind == RIGHT
    used = label(by_hand(BEFORE[0], "h = w.exp()", "y = h.sum()", "h.data.zero_()  # write", *AFTER))
    assert used.lines is not None
    assert [set(used.lines.written), set(used.lines.saved)] == [{FIRST + 3}, {FIRST + 1}]
