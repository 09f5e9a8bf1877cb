"""From suspects to findings: run the program again under the microscope, or say why that did not help."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable
from typing import Any

from pytest_inplace.engine.alike import adopt, adopt_alike, is_lost
from pytest_inplace.engine.children import Children
from pytest_inplace.engine.children import key_of as key_of_finding
from pytest_inplace.engine.deadline import Deadline
from pytest_inplace.engine.evidence import Case, Entry, Evidence
from pytest_inplace.engine.ledger import Suspect
from pytest_inplace.engine.microscope import Microscope
from pytest_inplace.reports import call_sites, fixes
from pytest_inplace.reports.findings import Coverage, Finding, Site, TensorInfo, merge

NOT_REPRODUCED = (
    "the second run of the test did not show it again (the test is not deterministic), "
    "so the line that wrote it and the gradients are not known"
)


_REENTRANT = "CheckpointFunctionBackward"
_CHECKPOINT = os.path.join("torch", "utils", "checkpoint.py")


FROM_BEFORE = (
    "it was saved before this test, by what surrounds it or by another test, "
    "so a second run cannot tell the values that it had and the right gradients"
)


def replay(
    run: Callable[[], object],
    suspects: Iterable[Suspect],
    lines: bool = True,
    children: Iterable[Finding] = (),
    deadline: Deadline | None = None,
    cut: str = "",
    coverage: Coverage | None = None,
) -> list[Finding]:
    """Run the program again and judge ``suspects``; harmless ones give no finding.

    Args:
        run: runs the program from the same state as before, as often as it is called. It must not raise.
        suspects: what the sentinel saw in the first run.
        lines: trace lines, to name the one that wrote.
        children: what child processes of the first run found without knowing the lines.
        deadline: breaks the program off; ``run`` enters it for the part that may be.
        cut: what a report is to say if that happens.
        coverage: counts what was not tried itself.
    """
    suspects = list(suspects)
    microscope = Microscope(
        frozenset(key for s in suspects if (key := key_of(s)) is not None), lines, deadline=deadline
    )
    if coverage is not None:
        microscope.doubts = coverage
    for suspect in suspects:
        microscope.follow(suspect)
    found = _watch(microscope, run)
    missing = [s for s in suspects if is_lost(s, microscope)]
    if missing and not (deadline is not None and deadline.passed):
        other = Microscope(frozenset(), lines, frozenset(s.where for s in missing), deadline)
        _watch(other, run)
        adopt(microscope, missing, suspects, other)
        adopt_alike(microscope, [s for s in missing if is_lost(s, microscope)], other, coverage)
    broken_off = cut if deadline is not None and deadline.passed else None
    own = [*findings_of(microscope, suspects, cut=broken_off), *microscope.frozen_findings]
    return [*own, *_of_children(microscope.children, found, children)]


def _watch(microscope: Microscope, run: Callable[[], object]) -> list[Finding]:
    """Run the program; the result is what its child processes found."""
    found: list[Finding] = []
    try:
        microscope.start()
    except BaseException:  # a torch without one of the parts that we take hold of
        microscope.stop()
        raise
    try:
        run()
    finally:
        microscope.stop()
        found += microscope.children.collect()
        microscope.children.close()
    return found


def _of_children(second: Children, found: list[Finding], first: Iterable[Finding]) -> list[Finding]:
    """What children found in the second run, and what they found in the first only; but nothing harmless."""
    lost = [f for f in first if key_of_finding(f) not in second.suspects]
    return [*found, *(dataclasses.replace(f, note=NOT_REPRODUCED) for f in lost)]


def findings_of(
    microscope: Microscope, suspects: Iterable[Suspect], why: str | None = None, cut: str | None = None
) -> list[Finding]:
    """The findings for ``suspects``, by what the microscope saw of them in this run or in another one.

    ``cut`` says why that run did not come to its end, if it did not.
    """
    ordered = sorted(suspects, key=_saving_order)
    found = [(s, f) for s in ordered if (f := judged(s, microscope.reproduced(s), why, cut)) is not None]
    return merge(_told_once(found))


def _told_once(found: list[tuple[Suspect, Finding]]) -> list[Finding]:
    """Without what only repeats another finding: that an argument of a checkpoint was overwritten, and that
    the recomputation, for which it had been saved, went another way."""
    arguments = [f for s, f in found if _is_argument_of_checkpoint(s)]
    if any(f.saved is not None and f.saved.op == _REENTRANT for f in arguments):
        found = [(s, f) for s, f in found if f.code != "INP204" or f.modified is not None]
    told = [f.modified for _, f in found if f.code == "INP204" and f.modified is not None]
    return [f for _, f in found if f.code == "INP204" or f.modified not in told or f not in arguments]


def _is_argument_of_checkpoint(suspect: Suspect) -> bool:
    if suspect.kind != "saved" or suspect.error is not None or suspect.where is None:
        return False
    return suspect.op == _REENTRANT or suspect.where[0].co_filename.endswith(_CHECKPOINT)


def unreplayed(suspects: Iterable[Suspect], why: str) -> list[Finding]:
    """What the sentinel alone can say. Suspects that only a replay can tell from normal code are left out."""
    kept = [s for s in suspects if not s.needs_extension]
    return merge(from_sentinel(s, why) for s in sorted(kept, key=_saving_order))


def _saving_order(suspect: Suspect) -> int:
    return suspect.ordinal if suspect.ordinal is not None else -1


def key_of(suspect: Suspect) -> Any:
    """What identifies a suspect in another run of the same program, or ``None``."""
    return suspect.ordinal if suspect.kind == "saved" else suspect.key


_CODES = {"ctx": "INP201", "input": "INP202", "grad": "INP203", "recompute": "INP204", "hooks": "INP205"}


def code_of(suspect: Suspect) -> str:
    """The rule that a suspect breaks."""
    if suspect.kind != "saved":
        return _CODES[suspect.kind]
    if suspect.leaf:
        return "INP103"
    return "INP101" if suspect.version_now != suspect.version_saved else "INP102"


def from_sentinel(suspect: Suspect, why: str) -> Finding:
    """A finding without values, gradients or the writing line."""
    saved = call_sites.resolve(suspect.where, suspect.op)
    return Finding(
        code=code_of(suspect),
        state="latent" if suspect.latent else "confirmed",
        tensor=TensorInfo(None, suspect.shape, suspect.dtype, suspect.device, suspect.leaf),
        saved=saved,
        used=call_sites.resolve(suspect.used),
        version_saved=suspect.version_saved,
        version_now=suspect.version_now,
        raised=None if suspect.error is None else str(suspect.error),
        fix=fixes.suggest(code_of(suspect), None),
        note=why,
    )


def judged(
    suspect: Suspect, entry: Evidence | None, why: str | None = None, cut: str | None = None
) -> Finding | None:
    """The finding for a suspect after the replay, or ``None`` if it is harmless."""
    if entry is None:
        reason = FROM_BEFORE if suspect.is_from_before else cut or NOT_REPRODUCED
        return None if suspect.needs_extension else from_sentinel(suspect, reason)
    if suspect.needs_extension and not entry.extended:
        return None
    if isinstance(entry, Entry) and entry.relaid:
        return None
    raised = suspect.error is not None
    if not suspect.latent and not raised and not _differs(entry):
        return None
    note = why
    if why is None and not entry.exact:
        note = "several threads ran when the write was noticed: it may have been another one than this line's"
    if suspect.is_from_before:
        note = FROM_BEFORE
    elif not suspect.latent and not entry.judged:
        trouble = entry.trouble or cut or "it changed during the backward pass"
        note = f"the gradients could not be compared ({trouble})"
    if isinstance(entry, Case):
        if suspect.kind == "input" and not entry.judged and not entry.extended:
            return None  # nothing was computed from it
        note = why if suspect.kind == "input" else entry.note or note
    modified = call_sites.resolve(entry.modified)
    code = code_of(suspect)
    return Finding(
        code=code,
        state="latent" if suspect.latent or (suspect.kind == "input" and not entry.judged) else "confirmed",
        tensor=_tensor(suspect, entry),
        saved=_with_op(call_sites.resolve(entry.where or suspect.where), suspect.op or entry.op),
        modified=modified,
        modified_exact=modified is not None and entry.exact,
        used=call_sites.resolve(suspect.used or entry.used),
        version_saved=suspect.version_saved,
        version_now=suspect.version_now,
        values=entry.values,
        gradients=entry.errors,
        gradients_judged=entry.judged and suspect.kind != "input",
        gradients_total=entry.leaves,
        relative_error=entry.relative_error,
        raised=None if suspect.error is None else str(suspect.error),
        replayed=why is None,
        fix=fixes.suggest(code, modified),
        note=note,
    )


def _tensor(suspect: Suspect, entry: Evidence) -> TensorInfo:
    if isinstance(entry, Case) and entry.tensor is not None:
        return entry.tensor
    return TensorInfo(entry.name, suspect.shape, suspect.dtype, suspect.device, suspect.leaf)


def _differs(entry: Evidence) -> bool:
    """Whether a silent change did harm; where the gradients could not be compared, a change of values."""
    if entry.judged:
        return bool(entry.harmful)
    return entry.values is None or entry.values.changed > 0


def _with_op(site: Site | None, op: str | None) -> Site | None:
    return None if site is None else dataclasses.replace(site, op=op)
