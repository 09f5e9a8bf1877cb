"""The plugin's verdict about a program against the truth about it."""

from __future__ import annotations

import math
import re
import tempfile
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from .grammar import LATENT, MAIN
from .labels import (
    DISCARDED,
    EXPECT_LATENT,
    EXPECT_NOTHING,
    RAISES,
    RIGHT,
    WRONG,
    Label,
    all_equal,
    label,
    load,
    run,
)

if TYPE_CHECKING:
    from .model import Program

MODIFIED_CODES = {"INP101", "INP102", "INP103"}


def examined(source: str, folder: Path) -> tuple[Any, str]:
    """Run a program from a real file through the engine."""
    from pytest_inplace.engine.guard import examine

    path = folder / "generated_program.py"
    program = load(source, path)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return examine(program), str(path)


def disagreements(found: Label) -> list[str]:
    """Where the engine's verdict and the label part, in words; empty if they agree."""
    if found.kind == DISCARDED:
        return []
    with tempfile.TemporaryDirectory() as folder:
        if found.program.group == LATENT:
            return _latent(found, Path(folder))
        examination, path = examined(found.program.source(), Path(folder))
    confirmed = [f for f in examination.findings if f.state == "confirmed"]
    complaints = _same_behaviour(found, examination)
    if found.kind == RIGHT:
        complaints += [f"false finding {_summary(f)}" for f in confirmed if not _rounded_away(found, f)]
    if found.kind in (RAISES, WRONG):
        if not confirmed:
            complaints.append("nothing is confirmed")
        elif found.program.group == MAIN:
            complaints += _codes(found, confirmed)
            complaints += _lines(found, confirmed, path)
    if found.kind == WRONG and confirmed:
        complaints += _gradients(found, confirmed)
    return complaints


def _same_behaviour(found: Label, examination: Any) -> list[str]:
    """The first run under the plugin comes to what the plain run came to."""
    error, plain = examination.error, found.plain
    if plain.error is not None:
        if error is None:
            return [f"plain raises {plain.text!r}, the examined run doesn't"]
        if type(error) is not type(plain.error) or not _same_text(str(error), str(plain.error)):
            return [f"other error {type(error).__name__}: {error}", f"instead of {plain.text}"]
        return []
    if error is not None:
        return [f"the examined run raises {type(error).__name__}: {error}"]
    assert plain.gradients is not None
    return [] if all_equal(plain.gradients, examination.result) else ["other gradients than plain's"]


def _same_text(examined: str, plain: str) -> bool:
    """Of a view written in place Python cannot tell which operation that was, so its name may differ."""
    if "output 0 of torch::autograd::CopySlices," in examined:
        plain = re.sub(r"output 0 of [\w:]+,", "output 0 of torch::autograd::CopySlices,", plain)
    return examined == plain


def _summary(finding: Any) -> str:
    lines = [
        site.line if site is not None else None for site in (finding.saved, finding.modified, finding.used)
    ]
    return f"{finding.code} {finding.state} (saved, modified, used in lines {lines})"


def _epsilon(found: Label) -> float:
    return torch.finfo(torch.float32 if "float32" in found.program.source() else torch.float64).eps


def _rounded_away(found: Label, finding: Any) -> bool:
    """Whether a gradient is wrong by so little that adding it to an earlier backward's could hide that."""
    kept = found.plain.gradients or []
    sizes = [float(g.abs().nan_to_num().max()) for one in kept for g in one if g is not None and g.numel()]
    limit = 4 * _epsilon(found) * max(sizes, default=0.0)
    stated = [g.max_abs for g in finding.gradients]
    return len(kept) > 1 and bool(stated) and all(s is not None and s <= limit for s in stated)


def _codes(found: Label, confirmed: list[Any]) -> list[str]:
    expected = {"INP101", "INP103"} if found.kind == RAISES else {"INP102", "INP103"}
    codes = {f.code for f in confirmed}
    return [] if codes & expected else [f"codes {sorted(codes)}, expected one of {sorted(expected)}"]


def _lines(found: Label, confirmed: list[Any], path: str) -> list[str]:
    """With exactly one harmful write, its line and a line that saved what it overwrote are known."""
    lines = found.lines
    if lines is None or len(lines.written) != 1:
        return []
    complaints = []
    for finding in confirmed:
        if finding.code not in MODIFIED_CODES:
            continue
        if (
            finding.modified is None
            or finding.modified.path != path
            or finding.modified.line not in lines.written
        ):
            complaints.append(f"written in {sorted(lines.written)}, but {_summary(finding)}")
        if finding.saved is None or finding.saved.path != path or finding.saved.line not in lines.saved:
            complaints.append(f"saved in {sorted(lines.saved)}, but {_summary(finding)}")
    return complaints


def _gradients(found: Label, confirmed: list[Any]) -> list[str]:
    """Some finding states the error of the first wrong backward pass, up to the rounding of accumulation."""
    if found.program.group not in (MAIN, LATENT) or not math.isfinite(found.max_abs):
        return []
    stated = [g.max_abs for f in confirmed for g in f.gradients]
    slack = 64 * _epsilon(found) * (found.scale + found.max_abs)
    if any(s is not None and abs(s - found.max_abs) <= slack for s in stated):
        return []
    return [f"gradient wrong by {found.max_abs:.6g}, the findings say {stated}"]


def _latent(found: Label, folder: Path) -> list[str]:
    """The same program without its closing backward: only the expectation about latent findings counts."""
    source = found.program.source(closing=False)
    plain = run(load(source))
    examination, _ = examined(source, folder)
    complaints = _same_behaviour(Label(found.kind, found.program, plain), examination)
    complaints += [
        f"confirmed without a backward: {_summary(f)}" for f in examination.findings if f.state != "latent"
    ]
    if found.latent == EXPECT_LATENT and not any(f.state == "latent" for f in examination.findings):
        complaints.append("an overwritten intermediate is not found")
    if found.latent == EXPECT_NOTHING:
        complaints += [f"false finding {_summary(f)}" for f in examination.findings]
    return complaints


def reduced(program: Program) -> Program:
    """The program with as many statements dropped as possible while label and engine still disagree alike."""

    def signature(candidate: Program) -> tuple[str, frozenset[str]]:
        found = label(candidate)
        # The first words name the sort of complaint; numbers in it may change with each dropped line.
        return found.kind, frozenset(" ".join(c.split()[:2]) for c in disagreements(found))

    wanted = signature(program)
    if not wanted[1]:
        return program
    size = max(1, len(program.statements) // 2)
    while size:
        before = program
        for position in range(len(program.statements) - 1 - size, -1, -size):
            chosen = range(position, position + size)
            # Without its records a program would count as right for want of gradients.
            dropped = {i for i in chosen if not program.statements[i].text.startswith("grads")}
            if not dropped:
                continue
            candidate = program.without(dropped)
            try:
                if signature(candidate) == wanted:
                    program = candidate
            except SyntaxError:  # a loop or block that lost its body
                continue
        # A dropped use makes its definition droppable, so the last size is tried until nothing goes.
        size = size if size == 1 and program is not before else size // 2
    return program
