"""Suspects that a second run did not show under their numbers: others of their place stand in for them.

What the first run did once and for all, in a cache, say, shifts the numbers of the saves. And who measures
time, as pytest-benchmark, calls a function as often as time permits, so that one run makes saves that the
other one does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from types import FrameType
from typing import TYPE_CHECKING, Any

from pytest_inplace.engine import saved, values
from pytest_inplace.engine.releases import apply_code
from pytest_inplace.reports.call_sites import Capture
from pytest_inplace.reports.findings import Coverage

if TYPE_CHECKING:
    from pytest_inplace.engine.evidence import Entry
    from pytest_inplace.engine.ledger import Suspect
    from pytest_inplace.engine.microscope import Microscope

TAKEN_FOR_HARMLESS = "a save that the second run did not make again: harmless, as others of its line were"


def calling_place(frame: FrameType | None) -> Capture | None:
    """The Python code that called the operation, which the sentinel notes: it may be a library's."""
    while frame is not None and frame.f_code.co_filename == saved.__file__:
        frame = frame.f_back
    if frame is not None and frame.f_code is apply_code():
        frame = saved.caller_of(frame)
    return None if frame is None else (frame.f_code, frame.f_lasti)


def is_lost(suspect: Suspect, scope: Microscope) -> bool:
    """Whether the run did not show a save, showed another one under its number, or judged enough before."""
    if suspect.kind != "saved" or suspect.ordinal is None or suspect.where is None:
        return False
    entry = scope.reproduced(suspect)
    if entry is None:
        return True
    is_left_out = scope.judged_enough and not entry.judged and entry.trouble is None
    return is_left_out and not suspect.latent and suspect.error is None


def adopt(scope: Microscope, missing: list[Suspect], suspects: Iterable[Suspect], other: Microscope) -> None:
    """Take from another run, with other numbers, what was written at the places of these suspects.

    Where both runs made as many saves they are the same ones in the same order.
    """
    places = {suspect.where for suspect in missing}
    by_place: dict[Any, list[Suspect]] = {}
    for suspect in suspects:
        if suspect.kind == "saved" and suspect.where in places:
            by_place.setdefault(suspect.where, []).append(suspect)
    lost = {id(suspect) for suspect in missing}
    for place, all_there in by_place.items():
        entries = [e for _, e in sorted(other.entries.items()) if place in (e.where, e.called) and e.differs]
        if len(entries) != len(all_there):
            continue
        all_there.sort(key=lambda s: -1 if s.ordinal is None else s.ordinal)
        for suspect, entry in zip(all_there, entries, strict=True):
            if id(suspect) in lost and _is_alike(entry, suspect):
                scope.stand_in(suspect, entry)


def adopt_alike(
    scope: Microscope, suspects: Iterable[Suspect], other: Microscope, coverage: Coverage | None
) -> None:
    """Judge what is still missing by saves of the same place, operator and shape in either run.

    One that did harm is shown for it. It is harmless if all of those were; ``coverage`` counts that, for
    nobody has tried this very one.
    """
    entries: dict[Any, list[Entry]] = {}
    for entry in [*scope.entries.values(), *other.entries.values()]:
        if entry.differs:
            for place in {entry.where, entry.called}:
                entries.setdefault(place, []).append(entry)
    for suspect in suspects:
        found = _spokesman(suspect, [e for e in entries.get(suspect.where, ()) if _is_alike(e, suspect)])
        if found is None:
            continue
        scope.stand_in(suspect, found)
        if coverage is not None and found.judged and not found.harmful:
            coverage.not_checked(TAKEN_FOR_HARMLESS)


def _is_alike(entry: Entry, suspect: Suspect) -> bool:
    return (
        tuple(entry.copy.shape) == suspect.shape
        and values.dtype_name(entry.copy) == suspect.dtype
        and (entry.op is None or suspect.op is None or entry.op == suspect.op)
    )


def _spokesman(suspect: Suspect, entries: list[Entry]) -> Entry | None:
    """The entry that says most about a suspect: one that did harm, else one that was judged."""
    if suspect.latent:
        return max(entries, key=lambda e: e.extended, default=None)
    if any(entry.trouble is not None for entry in entries):
        return next((e for e in entries if e.harmful), None)
    judged = [entry for entry in entries if entry.judged]
    return max(judged, key=lambda e: bool(e.harmful), default=None)
