"""The replay's view: the suspects' values are copied when they are saved, watched, and judged in backward."""

from __future__ import annotations

import sys
import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from pytest_inplace.engine import names, values
from pytest_inplace.engine.alike import calling_place
from pytest_inplace.engine.children import Children
from pytest_inplace.engine.deadline import Deadline
from pytest_inplace.engine.evidence import Entry, Evidence, Group, Rebound, Settings, Watched, is_again
from pytest_inplace.engine.extensions import Extensions
from pytest_inplace.engine.gradients import BackwardCall, Judge, Substitutes
from pytest_inplace.engine.lanes import Lane
from pytest_inplace.engine.ledger import Ledger, Record, Suspect, is_statistic
from pytest_inplace.engine.outside import Outside
from pytest_inplace.engine.questions import Questions
from pytest_inplace.engine.quiet import quiet
from pytest_inplace.engine.saved import make_unpack
from pytest_inplace.engine.trials import Trials
from pytest_inplace.engine.turns import Turns
from pytest_inplace.engine.watch import Watch, active_ledger
from pytest_inplace.engine.watchpoints import Tracer
from pytest_inplace.reports import call_sites
from pytest_inplace.reports.call_sites import Capture
from pytest_inplace.reports.findings import Finding, ValueDiff

if TYPE_CHECKING:
    import torch

MAX_WATCHED = 256
MAX_JUDGEMENTS = 200
MAX_BY_PLACE = 2000
"""Each is a copy that stays to the end: more would be a matter of memory."""


class Microscope(Questions):
    """Watches the suspects with the given keys (everything if ``None``) during one run of a program."""

    def __init__(
        self,
        keys: frozenset[Any] | None,
        lines: bool = True,
        places: frozenset[Any] = frozenset(),
        deadline: Deadline | None = None,
    ) -> None:
        """With ``places``, all that is saved there is watched besides the saves with the given keys.

        With ``lines``, a ``deadline`` breaks the program off where it has passed.
        """
        self._deadline = deadline
        self._places = places
        self._known: dict[int, Entry] = {}
        self.outside = Outside(self, keys)
        self.ledger = Ledger(
            on_saved=self._saved,
            on_dropped=self._dropped,
            on_held=self.outside.held,
            on_unused=self.outside.dropped,
        )
        self.doubts = self.ledger.coverage
        """Counts what a verdict leaves open."""
        self.entries: dict[int, Entry] = {}
        self._keys = keys
        self._anywhere = frozenset(
            Lane.position(key) for key in keys or () if isinstance(key, int) and key >> Lane.BITS
        )
        self._groups: dict[tuple[Any, ...], Group] = {}
        self._substitutes: Substitutes | None = None
        self._trial_lane: Lane | None = None
        self._trial = threading.Lock()
        self._looking = threading.RLock()
        self._turns: Turns | None = None
        self._alone = True
        self._judgements = 0
        self._trials = Trials(self)
        self.watched: list[Watched | Rebound | Settings] = []
        self.frozen_findings: list[Finding] = []
        self._busy: int | None = None
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
            if self.on_trial:
                tensor: torch.Tensor = self.substitutes.get(record.ordinal, record.tensor)
                return tensor
            if record.ordinal in self.entries and record.ledger is self.ledger:
                self._used(record)
            return plain_unpack(record)

        self._watch = Watch(self.ledger, unpack, self)
        self._turns = Turns(self._watch.threads)
        self._engine = engine = autograd._engine_run_backward

        def run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            # One trial at a time; one that takes so long may be waiting for this very thread.
            if not self.on_trial and self._trial.acquire(timeout=10):
                try:
                    self._before_backward(engine, outputs, args, kwargs.get("accumulate_grad", False))
                finally:
                    self._trial.release()
            return engine(outputs, *args, **kwargs)

        autograd._engine_run_backward = run_backward
        self._watch.start()
        if self._tracer is not None:
            self._tracer.start(frame)

    @property
    def children(self) -> Children:
        """The child processes of the program."""
        assert self._watch is not None
        return self._watch.children

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

    def thread_begins(self) -> None:
        """Another thread of the program is watched from now on."""
        if self._tracer is not None:
            self._tracer.enter_thread()

    # -- saving -------------------------------------------------------------------------------------

    def _saved(self, record: Record) -> None:
        self._extensions.look(record.tensor)
        self._trials.saved(record)
        called = calling_place(sys._getframe(1)) if self._places else record.where
        if not self._wanted(record.ordinal) and not (
            len(self.entries) < MAX_BY_PLACE and (record.where in self._places or called in self._places)
        ):
            return
        if self.on_trial or self.ledger.closed:
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
            called=called,
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
                # Written since the last step, so by the instruction that runs now.
                traced = self._tracer is not None and frame is not None
                self._look((frame.f_code, frame.f_lasti) if traced else None, frame)  # type: ignore[union-attr]

    def _wanted(self, ordinal: int) -> bool:
        """Which thread of a pool has the work is a matter of luck, so its saves are looked for in all."""
        if self._keys is None:
            return True
        if not ordinal >> Lane.BITS:
            return ordinal in self._keys
        return Lane.position(ordinal) in self._anywhere

    # -- watching -----------------------------------------------------------------------------------

    def _step(self, where: Capture | None, frame: FrameType) -> None:
        if self._busy == threading.get_ident() or self.on_trial or self._turns is None:
            return
        if self._deadline is not None:
            self._deadline.check()
        self._alone = self._turns.take()
        if where is None:
            return  # nothing of the user's has run
        with self._looking:
            if self._groups:
                self._look(where, frame)
            for item in self.watched:
                item.look(where, frame)
        self._turns.pass_on()

    def _look(self, where: Capture | None, frame: FrameType | None) -> None:
        """Compare every watched piece of memory with what it was at the last look."""
        import torch

        self._busy = threading.get_ident()
        try:
            with torch._C.DisableTorchFunction():
                for memory, group in list(self._groups.items()):
                    tensor = group.tensor()
                    if tensor is None:
                        del self._groups[memory]
                        continue
                    version = tensor._version
                    digest = group.digest if group.digest is None else values.digest(tensor)
                    if digest is None and values.freed(tensor):
                        digest = group.digest
                    if version != group.version or digest != group.digest:
                        group.version, group.digest = version, digest
                        for entry in group.entries:
                            self._written(entry, tensor, version, digest, where, frame)
        finally:
            self._busy = None

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
            entry.exact = self._alone
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
            same = values.freed(tensor) or values.same_values(entry.copy, tensor)
            now = None if same else values.digest(tensor)
            if not same and (now is None or now != entry.compared or entry.values is None):
                entry.values = values.difference(entry.copy, tensor)
            elif same and (entry.values is None or tensor._version != record.version):
                entry.values = ValueDiff(0, tensor.numel(), 0.0)
            entry.compared = now
        moved = tensor._version != record.version
        entry.relaid = same and not moved and values.rewritten(tensor, entry.digest)
        return not same or moved

    def _dropped(self, record: Record) -> None:
        entry = self.entries.get(record.ordinal)
        if entry is not None and record.ledger is self.ledger:
            self._compare(entry, record)

    def _before_backward(
        self, engine: Callable[..., Any], outputs: Any, args: tuple[Any, ...], accumulates: bool
    ) -> None:
        if self.judged_enough:
            return
        changed: dict[int, tuple[Entry, Record]] = {}
        for ordinal, entry in list(self.entries.items()):  # other threads add to it
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
        if not changed and not self.outside.pending() and not self._trials.pending():
            return
        self._judgements += 1
        self._judge(judge, call, changed, bool(args[2]))

    def _judge(
        self, judge: Judge, call: BackwardCall, changed: dict[int, tuple[Entry, Record]], creates_graph: bool
    ) -> None:
        self._trials.judge(judge, call, changed, creates_graph)

    def _substitute(self, substitutes: Substitutes | None) -> None:
        self._substitutes, self._trial_lane = substitutes, self.ledger.here.lane

    @property
    def on_trial(self) -> bool:
        """Whether a backward pass is running on trial right now, and this thread belongs to it.

        A thread that is not watched may be autograd's own, for a device.
        """
        return self._substitutes is not None and self.ledger.here.lane in (None, self._trial_lane)

    @property
    def substitutes(self) -> Substitutes:
        return self._substitutes or {}

    def reproduced(self, suspect: Suspect) -> Evidence | None:
        """What this run saw of a suspect, or ``None`` if it did not happen again."""
        if suspect.kind != "saved":
            return self.outside.reproduced(suspect)
        known = self._known.get(id(suspect))
        if known is not None or suspect.is_from_before:
            return known if known is not None and known.modified is not None else None
        if suspect.ordinal is None:
            return None
        candidates = [suspect.ordinal]
        if suspect.ordinal >> Lane.BITS:
            position = Lane.position(suspect.ordinal)
            candidates += [o for o in self.entries if o >> Lane.BITS and Lane.position(o) == position]
        found = (self.entries.get(ordinal) for ordinal in candidates)
        return next((e for e in found if e is not None and is_again(e, suspect)), None)

    def stand_in(self, suspect: Suspect, entry: Entry) -> None:
        """From now on this is what was seen of a suspect."""
        self._known[id(suspect)] = entry

    @property
    def was_cut(self) -> bool:
        """Whether the run was broken off."""
        return self._deadline is not None and self._deadline.passed

    @property
    def judged_enough(self) -> bool:
        """Whether no more backward passes are judged, each of which takes two of them."""
        return self._judgements >= MAX_JUDGEMENTS

    def forget(self, record: Record) -> None:
        """The record holds the tensor no more."""
        self.entries.pop(record.ordinal, None)
        for group in self._groups.values():
            group.entries = [entry for entry in group.entries if entry.record() is not record]
