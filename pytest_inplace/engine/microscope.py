"""The replay's view: the suspects' values are copied when they are saved, watched, and judged in backward."""

from __future__ import annotations

import contextlib
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import FrameType
from typing import TYPE_CHECKING, Any

from pytest_inplace.engine import names, values
from pytest_inplace.engine.evidence import Entry, Evidence, Group, Rebound, Settings, Watched
from pytest_inplace.engine.extensions import Extensions
from pytest_inplace.engine.gradients import BackwardCall, Judge, Substitutes
from pytest_inplace.engine.ledger import Ledger, Record, Suspect, is_statistic, latent_suspect
from pytest_inplace.engine.outside import Outside
from pytest_inplace.engine.quiet import quiet
from pytest_inplace.engine.saved import make_unpack
from pytest_inplace.engine.watch import Watch, active_ledger
from pytest_inplace.engine.watchpoints import Tracer
from pytest_inplace.reports import call_sites
from pytest_inplace.reports.call_sites import Capture
from pytest_inplace.reports.findings import Finding, ValueDiff

if TYPE_CHECKING:
    import torch

MAX_WATCHED = 256
MAX_JUDGEMENTS = 200


class Microscope:
    """Watches the suspects with the given keys (everything if ``None``) during one run of a program."""

    def __init__(
        self, keys: frozenset[Any] | None, lines: bool = True, places: frozenset[Any] = frozenset()
    ) -> None:
        """With ``places``, all that is saved there is watched besides the saves with the given keys."""
        self._places = places
        self._known: dict[int, Entry] = {}
        self.outside = Outside(self, keys)
        self.ledger = Ledger(on_saved=self._saved, on_dropped=self._dropped, on_held=self.outside.held)
        self.entries: dict[int, Entry] = {}
        self._keys = keys
        self._groups: dict[tuple[Any, ...], Group] = {}
        self._substitutes: Substitutes | None = None
        self._judgements = 0
        self.watched: list[Watched | Rebound | Settings] = []
        self.frozen_findings: list[Finding] = []
        self._busy = False
        self._extensions = Extensions(self.outside.inputs)
        self._tracer = Tracer(self._step, self._extensions.returned) if lines else None
        self._watch: Watch | None = None
        self._engine: Callable[..., Any] | None = None

    # -- running ------------------------------------------------------------------------------------

    def start(self, frame: FrameType | None = None) -> None:
        """Install hooks, the look at backward calls and the tracer (over ``frame`` too, if given)."""
        import torch

        autograd: Any = torch.autograd
        plain_unpack = make_unpack(active_ledger)

        def unpack(record: Record) -> torch.Tensor:
            __tracebackhide__ = True
            if self._substitutes is not None:
                tensor: torch.Tensor = self._substitutes.get(record.ordinal, record.tensor)
                return tensor
            if record.ordinal in self.entries and record.ledger is self.ledger:
                self._used(record)
            return plain_unpack(record)

        self._watch = Watch(self.ledger, unpack, self)
        self._engine = engine = autograd._engine_run_backward

        def run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            self._before_backward(engine, outputs, args, kwargs.get("accumulate_grad", False))
            return engine(outputs, *args, **kwargs)

        autograd._engine_run_backward = run_backward
        self._watch.start()
        if self._tracer is not None:
            self._tracer.start(frame)

    def pause(self) -> None:
        if self._watch is not None:
            self._watch.pause()

    def resume(self) -> None:
        if self._watch is not None:
            self._watch.resume()

    def stop(self) -> None:
        import torch

        autograd: Any = torch.autograd
        if self._tracer is not None:
            self._tracer.stop()
        if self._watch is not None:
            self._watch.stop()
        if self._engine is not None:
            autograd._engine_run_backward, self._engine = self._engine, None

    # -- saving -------------------------------------------------------------------------------------

    def _saved(self, record: Record) -> None:
        self._extensions.look(record.tensor)
        if self._keys is not None and record.ordinal not in self._keys and record.where not in self._places:
            return
        if self._substitutes is not None:
            return
        import torch

        tensor = record.tensor
        with quiet():
            copy = values.snapshot(tensor)
        node = torch._C._autograd._get_sequence_nr() - 1
        memory = values.elements_key(tensor)
        frame = call_sites.user_frame(sys._getframe(1))
        entry = Entry(
            names.tensor_name(tensor, frame, record.where and record.where[0]),
            record=weakref.ref(record),
            copy=copy,
            digest=record.digest,
            version=record.version,
            where=record.where,
            node=node,
        )
        self.entries[record.ordinal] = entry
        self._group(entry, record, memory, frame)

    def follow(self, suspect: Suspect) -> None:
        """Watch a save that was there before this run: the run may write it once more, and show where."""
        record = suspect.record() if suspect.record is not None else None
        if record is None:
            return
        tensor = record.tensor
        with quiet():
            entry = Entry(
                record=weakref.ref(record), copy=values.snapshot(tensor), digest=values.digest(tensor),
                version=tensor._version, where=record.where, node=0,
            )  # fmt: skip
        self._known[id(suspect)] = entry
        memory = values.elements_key(tensor)
        self._groups[memory] = Group([entry], entry.version, entry.digest)

    def _group(self, entry: Entry, record: Record, memory: tuple[Any, ...], frame: FrameType | None) -> None:
        """Watch the memory of a save together with that of others who saved the same elements."""
        group = self._groups.get(memory)
        if group is None or group.tensor() is None:
            if len(self._groups) < MAX_WATCHED:
                self._groups[memory] = Group([entry], record.version, record.digest)
        else:
            group.entries.append(entry)
            if group.version != record.version or group.digest != record.digest:
                self._look(None, frame)

    # -- watching -----------------------------------------------------------------------------------

    def _step(self, where: Capture, frame: FrameType) -> None:
        if self._busy or self._substitutes is not None:
            return
        if self._groups:
            self._look(where, frame)
        for item in self.watched:
            item.look(where, frame)

    def _look(self, where: Capture | None, frame: FrameType | None) -> None:
        """Compare every watched piece of memory with what it was at the last look."""
        import torch

        self._busy = True
        try:
            with torch._C.DisableTorchFunction():
                for memory, group in list(self._groups.items()):
                    tensor = group.tensor()
                    if tensor is None:
                        del self._groups[memory]
                        continue
                    version = tensor._version
                    digest = group.digest if group.digest is None else values.digest(tensor)
                    if version != group.version or digest != group.digest:
                        group.version, group.digest = version, digest
                        for entry in group.entries:
                            self._written(entry, tensor, version, digest, where, frame)
        finally:
            self._busy = False

    def _written(
        self, entry: Entry, tensor: torch.Tensor, version: int, digest: int | None,
        where: Capture | None, frame: FrameType | None,
    ) -> None:  # fmt: skip
        record = entry.record()
        if record is None or (record.used and entry.judged and entry.harmful):
            return
        if entry.version_writer is None and version != entry.version:
            entry.version_writer = where
        if digest == entry.digest:
            entry.writer = None  # put back bit for bit
        elif entry.writer is None:
            entry.writer = where
        if entry.name is None:
            entry.name = names.tensor_name(record.tensor, frame, entry.where and entry.where[0])
        if version != entry.version or not is_statistic(record):
            self._extensions.written(entry)

    # -- using and judging ----------------------------------------------------------------------------

    def _used(self, record: Record) -> None:
        import torch

        entry = self.entries[record.ordinal]
        node = torch._C._current_autograd_node()
        if node is not None:
            entry.op = node.name()
        if not entry.judged:
            self._compare(entry, record)

    def _compare(self, entry: Entry, record: Record) -> bool:
        """Whether the tensor differs from what was saved; notes how it does."""
        tensor = record.tensor
        entry.version_now = tensor._version
        with quiet():
            same = values.same_values(entry.copy, tensor)
            if not same:
                entry.values = values.difference(entry.copy, tensor)
            elif entry.values is None or tensor._version != record.version:
                entry.values = ValueDiff(0, tensor.numel(), 0.0)
        moved = tensor._version != record.version
        entry.relaid = same and not moved and values.digest(tensor) != entry.digest
        return not same or moved

    def _dropped(self, record: Record) -> None:
        entry = self.entries.get(record.ordinal)
        if entry is not None and record.ledger is self.ledger:
            self._compare(entry, record)

    def _before_backward(
        self, engine: Callable[..., Any], outputs: Any, args: tuple[Any, ...], accumulates: bool
    ) -> None:
        if self._substitutes is not None or self._judgements >= MAX_JUDGEMENTS:
            return
        changed: dict[int, tuple[Entry, Record]] = {}
        for ordinal, entry in self.entries.items():
            record = entry.record()
            if record is not None and not entry.harmful and self._compare(entry, record):
                changed[ordinal] = (entry, record)
        frame = call_sites.user_frame(sys._getframe(2))
        call = BackwardCall(outputs, args[0], args[3] or (), frame, accumulates)
        judge = Judge(engine, self._substitute)

        def run() -> None:
            with self.ledger.as_if_not_run():
                judge.run(call)

        self.outside.inputs.follow(call, run)
        if not changed and not self.outside.pending():
            return
        self._judgements += 1
        self._judge(judge, call, changed)

    def _substitute(self, substitutes: Substitutes | None) -> None:
        self._substitutes = substitutes

    @property
    def on_trial(self) -> bool:
        """Whether a backward pass is running on trial right now."""
        return self._substitutes is not None

    @property
    def substitutes(self) -> Substitutes:
        return self._substitutes or {}

    def _judge(self, judge: Judge, call: BackwardCall, changed: dict[int, tuple[Entry, Record]]) -> None:
        right: Substitutes = {}
        now: Substitutes = {}
        groups: dict[Any, list[Any]] = {}
        evidence: dict[Any, Evidence] = {ordinal: entry for ordinal, (entry, _) in changed.items()}
        with quiet():
            for ordinal, (entry, record) in changed.items():
                right[ordinal] = entry.copy
                same_layout = entry.copy.shape == record.tensor.shape
                now[ordinal] = (
                    values.in_layout_of(entry.copy, record.tensor) if same_layout else record.tensor
                )
                groups.setdefault(values.storage_key(record.tensor), []).append(ordinal)
            self.outside.put_on_trial(call, right, now, groups, evidence)
        try:
            with self.ledger.as_if_not_run():
                verdict = judge.judge(call, right, now, groups)
        except Exception as error:
            for each in evidence.values():
                each.trouble = f"{type(error).__name__}: {error}".splitlines()[0]
            return
        for key, members in groups.items():
            for member in members:
                each = evidence[member]
                each.judged, each.harmful = True, key in verdict.harmful
                each.errors = verdict.errors if each.harmful else ()
                each.leaves = verdict.leaves
                each.relative_error = verdict.relative_error if each.harmful else None

    def reproduced(self, suspect: Suspect) -> Evidence | None:
        """What this run saw of a suspect, or ``None`` if it did not happen again."""
        if suspect.kind != "saved":
            return self.outside.reproduced(suspect)
        known = self._known.get(id(suspect))
        if known is not None or suspect.is_from_before:
            return known if known is not None and known.modified is not None else None
        entry = self.entries.get(suspect.ordinal) if suspect.ordinal is not None else None
        if entry is None or entry.values is None or not _same_place(entry.where, suspect.where):
            return None
        moved = entry.version_now is not None and entry.version_now != entry.version
        return entry if entry.values.changed or moved or entry.relaid else None

    def adopt(self, suspects: Iterable[Suspect], other: Microscope) -> None:
        """Take from another run, with other ordinals, what was written at the places of these suspects."""
        by_place: dict[Any, list[Suspect]] = {}
        for suspect in suspects:
            by_place.setdefault(suspect.where, []).append(suspect)
        for place, missing in by_place.items():
            entries = [e for _, e in sorted(other.entries.items()) if e.where == place and e.differs]
            if len(entries) == len(missing):
                self._known.update({id(s): e for s, e in zip(missing, entries, strict=True)})

    # -- questions that a test asks while it runs -------------------------------------------------------

    def drop_unused(self) -> None:
        self.ledger.drop_unused()

    def changed_now(self) -> list[Suspect]:
        """A suspect for every save that is still needed and differs from what was saved."""
        found = []
        for ordinal in list(self.entries):
            entry = self.entries[ordinal]
            record = entry.record()
            if record is None or not self._compare(entry, record):
                continue
            suspect = latent_suspect(record)
            if suspect is not None:
                suspect.needs_extension = False
                found.append(suspect)
        return found

    def forget(self, record: Record) -> None:
        """The record holds the tensor no more."""
        self.entries.pop(record.ordinal, None)
        for group in self._groups.values():
            group.entries = [entry for entry in group.entries if entry.record() is not record]

    def seen(self, suspects: Iterable[Suspect]) -> None:
        """They are not to be found a second time when their records die."""
        for suspect in suspects:
            entry = self.entries.get(suspect.ordinal) if suspect.ordinal is not None else None
            record = None if entry is None else entry.record()
            if record is not None:
                record.mark_used()

    @contextlib.contextmanager
    def accepting(self) -> Iterator[None]:
        """Accept the writes made inside: what they leave behind counts as what was saved."""
        before = {o: self._state(r) for o, e in self.entries.items() if (r := e.record()) is not None}
        saved = {o: (self.entries[o].version, self.entries[o].digest) for o in before}
        written_before = {*self.ledger.suspects, *(o for o, state in before.items() if state != saved[o])}
        try:
            yield
        finally:
            for key, suspect in list(self.ledger.suspects.items()):
                # A backward pass inside has used them already.
                if suspect.error is None and key not in written_before:
                    del self.ledger.suspects[key]
            for ordinal, entry in self.entries.items():
                record = entry.record()
                if record is None or before.get(ordinal) == self._state(record):
                    continue
                if ordinal not in before and not self._compare(entry, record):
                    continue
                with quiet():
                    entry.copy = values.snapshot(record.tensor)
                entry.values, entry.writer, entry.version_writer = None, None, None
                entry.digest = values.digest(record.tensor)
                record.accept(entry.digest)
                self.ledger.accepted[ordinal] = entry.version = record.tensor._version

    @staticmethod
    def _state(record: Record) -> tuple[int, int | None]:
        return record.tensor._version, values.digest(record.tensor)


def _same_place(here: Capture | None, there: Capture | None) -> bool:
    """Whether a save of this run is that of another one, which may know the library's line only."""
    return here == there or there is None or call_sites.is_library(there[0])
