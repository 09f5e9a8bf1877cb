"""Trying a backward pass from untouched values: with what was saved, and with what was built of it since.

A backward pass with ``create_graph=True`` saves again what it computes. If it reads overwritten values and
its own gradients are right all the same (two wrong signs may cancel), a second backward pass over that graph
need not be. So what it would have saved from the untouched values is noted, too.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_inplace.engine import values
from pytest_inplace.engine.evidence import Entry, Evidence
from pytest_inplace.engine.gradients import BackwardCall, Judge, Substitutes
from pytest_inplace.engine.ledger import Record
from pytest_inplace.engine.quiet import quiet

if TYPE_CHECKING:
    import torch

    from pytest_inplace.engine.microscope import Microscope


@dataclass
class _Built:
    """A save of a backward pass, what it would have been from untouched values, and whose doing it is."""

    record: weakref.ref[Record]
    right: torch.Tensor
    culprits: dict[Any, list[Evidence]]


class Trials:
    """Judges the backward passes of one run."""

    def __init__(self, scope: Microscope) -> None:
        self._scope = scope
        self._noting: dict[int, torch.Tensor] | None = None
        self._expected: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._culprits: dict[Any, list[Evidence]] = {}
        self._built: dict[int, _Built] = {}

    def saved(self, record: Record) -> None:
        """Look at what a backward pass saves again, on trial or then in earnest."""
        if self._noting is not None:
            with quiet():
                self._noting[record.ordinal] = values.snapshot(record.tensor)
        elif self._expected and not self._scope.on_trial:
            right, now = self._expected.pop(record.ordinal, (None, None))
            with quiet():
                if right is not None and now is not None and values.same_values(now, record.tensor):
                    self._built[record.ordinal] = _Built(weakref.ref(record), right, self._culprits)

    def pending(self) -> bool:
        """Whether anything that is still needed was built of overwritten values."""
        self._built = {o: each for o, each in self._built.items() if each.record() is not None}
        return bool(self._built)

    def judge(
        self, judge: Judge, call: BackwardCall, changed: dict[int, tuple[Entry, Record]], creates_graph: bool
    ) -> None:
        """Judge everything changed by this backward pass, which is about to run."""
        right: Substitutes = {}
        now: Substitutes = {}
        groups: dict[Any, list[Any]] = {}
        evidence: dict[Any, Evidence] = {ordinal: entry for ordinal, (entry, _) in changed.items()}
        with quiet():
            for ordinal, (entry, record) in changed.items():
                right[ordinal] = entry.copy
                now[ordinal] = _present(entry.copy, record.tensor)
                groups.setdefault(values.storage_key(record.tensor), []).append(ordinal)
            self._scope.outside.put_on_trial(call, right, now, groups, evidence)
            blamed = self._put_built_on_trial(right, now, groups)
        try:
            with self._scope.ledger.as_if_not_run():
                verdict = judge.judge(call, right, now, groups)
        except Exception as error:
            for each in evidence.values():
                each.trouble = f"{type(error).__name__}: {error}".splitlines()[0]
            return
        for key, members in groups.items():
            for each in [*(evidence[m] for m in members if m in evidence), *blamed.get(key, ())]:
                if each.harmful:
                    continue
                each.judged, each.harmful = True, key in verdict.harmful
                each.errors = verdict.errors if each.harmful else ()
                each.leaves = verdict.leaves
                each.relative_error = verdict.relative_error if each.harmful else None
        if creates_graph:
            self._note_what_is_built(judge, call, right, now, groups, evidence)

    def _put_built_on_trial(
        self, right: Substitutes, now: Substitutes, groups: dict[Any, list[Any]]
    ) -> dict[Any, list[Evidence]]:
        """Enter what was built into the groups of those who wrote; the result is who that was."""
        blamed: dict[Any, list[Evidence]] = {}
        if not self.pending():
            return blamed
        for ordinal, each in self._built.items():
            record = each.record()
            culprits = {
                key: alive for key, of in each.culprits.items() if (alive := [e for e in of if not e.harmful])
            }
            if record is None or not culprits:
                continue
            is_changed_too = ordinal in right  # written once more since, which is a group of its own
            right[ordinal] = each.right
            if is_changed_too:
                continue
            now[ordinal] = _present(each.right, record.tensor)
            for key, of in culprits.items():
                groups.setdefault(key, []).append(ordinal)
                blamed[key] = of
        return blamed

    def _note_what_is_built(
        self, judge: Judge, call: BackwardCall, right: Substitutes, now: Substitutes,
        groups: dict[Any, list[Any]], evidence: dict[Any, Evidence],
    ) -> None:  # fmt: skip
        """Try what the pass saves from untouched values; only of what did no harm, the rest is a finding."""
        self._expected = {}
        culprits = {
            key: alive
            for key, members in groups.items()
            if (alive := [evidence[m] for m in members if m in evidence and not evidence[m].harmful])
        }
        if not culprits:
            return
        untouched = {**now, **{m: right[m] for key in culprits for m in groups[key]}}
        from_untouched = self._saves(judge, call, untouched)
        from_present = self._saves(judge, call, now)
        if from_untouched is None or from_present is None or from_untouched.keys() != from_present.keys():
            return
        with quiet():
            self._expected = {
                ordinal: (saved, from_present[ordinal])
                for ordinal, saved in from_untouched.items()
                if saved.shape == from_present[ordinal].shape
                and not values.same_values(saved, from_present[ordinal])
            }
        self._culprits = culprits

    def _saves(
        self, judge: Judge, call: BackwardCall, substitutes: Substitutes
    ) -> dict[int, torch.Tensor] | None:
        noted: dict[int, torch.Tensor] = {}
        self._noting = noted
        try:
            with self._scope.ledger.as_if_not_run():
                judge.build(call, substitutes)
        except Exception:
            return None  # the pass in earnest will tell
        finally:
            self._noting = None
        return noted


def _present(like: torch.Tensor, tensor: torch.Tensor) -> torch.Tensor:
    """What a trial gives for the present values: in the layout of the saved ones, for the same kernels."""
    if like.shape != tensor.shape:
        return tensor
    copy = values.snapshot(like)
    expanded = any(s == 0 and d > 1 for s, d in zip(copy.stride(), copy.shape, strict=True))
    if expanded or copy.stride() == tensor.stride() or values.unreadable(copy) is not None:
        return values.snapshot(tensor)
    return copy.copy_(tensor.detach())
