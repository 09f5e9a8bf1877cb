"""What the second run learns about each suspect: who wrote, which values changed, what the verdict was."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

from pytest_inplace.engine import names, values
from pytest_inplace.engine.held import unambiguous
from pytest_inplace.engine.inputs import (
    Sought,
    WrittenInput,
    seek,
    sends_gradients,
    uses_in,
)
from pytest_inplace.engine.reach import Named, is_alias
from pytest_inplace.engine.references import TensorRef
from pytest_inplace.reports import call_sites
from pytest_inplace.reports.call_sites import Capture
from pytest_inplace.reports.findings import GradientError, TensorInfo, ValueDiff

if TYPE_CHECKING:
    import torch

    from pytest_inplace.engine.gradients import BackwardCall
    from pytest_inplace.engine.ledger import Record, Suspect


@dataclass
class Evidence:
    """The parts that a finding is made of, whatever kept the tensor."""

    name: str | None = None
    op: str | None = None
    writer: Capture | None = None
    version_writer: Capture | None = None
    exact: bool = True
    """Whether no other thread can have written instead."""
    values: ValueDiff | None = None
    version_now: int | None = None
    harmful: bool | None = None
    judged: bool = False
    errors: tuple[GradientError, ...] = ()
    leaves: int = 0
    relative_error: float | None = None
    trouble: str | None = None
    extended: bool = False
    used: Capture | None = None
    where: Capture | None = None

    @property
    def modified(self) -> Capture | None:
        """The line that wrote. A BatchNorm writes its statistics where it saves them, which does no harm."""
        if self.version_writer is not None and self.writer == self.where:
            return self.version_writer
        return self.writer or self.version_writer


@dataclass
class Entry(Evidence):
    """A watched save. Holds a copy of the values, never the tensor."""

    record: weakref.ref[Record] = field(kw_only=True)
    copy: torch.Tensor = field(kw_only=True)
    digest: int | None = field(kw_only=True)
    version: int = field(kw_only=True)
    node: int = field(kw_only=True)
    called: Capture | None = None
    """The Python code that called the operation, be it the user's or a library's."""
    written_at: int | None = None
    compared: int | None = None
    """The digest of what ``values`` compares with: working out a difference costs much more."""

    @property
    def differs(self) -> bool:
        """Whether the tensor was not what had been saved, when it was looked at last."""
        moved = self.version_now is not None and self.version_now != self.version
        return self.values is not None and (self.values.changed > 0 or moved)

    relaid: bool = False
    """Whether the same values came to lie in another layout of memory, which a digest takes for a change."""
    thread: int = field(default_factory=threading.get_ident)


@dataclass
class Watched:
    """A tensor outside autograd's saves that is compared after every step: what it held, who changed it.

    ``by_version`` counts a moved version as a change too; without it a tensor that is put back bit for
    bit counts as unchanged. A ``nameless`` one is looked up among the user's variables when it changes.
    """

    name: str
    ref: TensorRef
    copy: torch.Tensor
    version: int
    digest: int | None
    by_version: bool = False
    nameless: bool = False
    writer: Capture | None = None
    alias: torch.Tensor | None = None
    """Our own look at the memory of an array, which nobody else keeps."""

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor, by_version: bool = False) -> Watched:
        """Start from what ``tensor`` holds now. Call it inside ``quiet()``."""
        return cls(
            name,
            TensorRef(tensor),
            values.snapshot(tensor),
            tensor._version,
            values.digest(tensor),
            by_version,
            alias=tensor if is_alias(tensor) else None,
        )

    def look(self, where: Capture | None, frame: FrameType | None) -> None:
        changed = self.changed()
        if changed and self.writer is None:
            self.writer = where
            if self.nameless and (tensor := self.ref()) is not None:
                self.name = names.tensor_name(tensor, frame) or self.name
        elif not changed and not self.by_version:
            self.writer = None

    def changed(self) -> bool:
        tensor = self.ref()
        if tensor is None:
            return False
        if self.by_version and tensor._version != self.version:
            return True
        return values.rewritten(tensor, self.digest)

    def info(self) -> TensorInfo | None:
        tensor = self.ref()
        if tensor is None:
            return None
        return TensorInfo(
            self.name,
            tuple(tensor.shape),
            values.dtype_name(tensor),
            str(tensor.device),
            values.is_leaf(tensor),
        )


@dataclass
class Group:
    """Saves of the same elements of memory: one look tells whether any of them changed."""

    entries: list[Entry]
    version: int
    digest: int | None

    def tensor(self) -> torch.Tensor | None:
        for entry in self.entries:
            record = entry.record()
            if record is not None:
                return record.tensor
        return None


@dataclass
class Case(Evidence):
    """A suspect outside autograd's saves: on a ctx, in a user's hooks or checkpoint, a gradient, an input."""

    kind: str = field(kw_only=True)
    watched: list[Watched | Rebound] = field(kw_only=True, default_factory=list)
    original: torch.Tensor | None = None
    alias: torch.Tensor | None = None
    alive: weakref.ref[Any] | None = None
    region: Region | None = None
    settings: Settings | None = None
    tensor: TensorInfo | None = None
    written: WrittenInput | None = None
    after: int = 0
    note: str | None = None
    seen: bool = False

    def first_changed(self) -> Watched | Rebound | None:
        return next((w for w in self.watched if w.changed()), None)


def _is_the_same(was: torch.Tensor | None, tensor: torch.Tensor) -> bool:
    """Whether it is the same tensor, or another look at the same array."""
    if was is None or was is tensor or not is_alias(tensor):
        return was is tensor
    return was.shape == tensor.shape and was.data_ptr() == tensor.data_ptr()


class Rebound:
    """What a ctx keeps or a checkpointed function was given, by its way there: is another tensor there?

    Answers as a :class:`Watched` tensor does.
    """

    def __init__(self, reach: Callable[[], list[Named]], watched: list[Watched]) -> None:
        self._reach = reach
        self._were = unambiguous((item.name, item) for item in watched)
        self.writer: Capture | None = None

    def _found(self) -> tuple[str, Watched, torch.Tensor] | None:
        for name, tensor in unambiguous(self._reach()).items():
            was = self._were.get(name)
            if was is not None and not _is_the_same(was.ref(), tensor):
                return name, was, tensor
        return None

    def look(self, where: Capture | None, frame: FrameType | None) -> None:
        changed = self.changed()
        if changed and self.writer is None:
            self.writer = where
        elif not changed:
            self.writer = None

    def changed(self) -> bool:
        return self._found() is not None

    def ref(self) -> torch.Tensor | None:
        """The tensor that is there now."""
        found = self._found()
        return None if found is None else found[2]

    @property
    def copy(self) -> torch.Tensor | None:
        """The values of the one that was there before."""
        found = self._found()
        return None if found is None else found[1].copy

    def info(self) -> TensorInfo | None:
        found = self._found()
        if found is None:
            return None
        name, _, tensor = found
        return TensorInfo(
            name, tuple(tensor.shape), values.dtype_name(tensor), str(tensor.device), values.is_leaf(tensor)
        )


class Settings:
    """The numbers, texts and flags that a checkpointed function reads: which of them changed, where?

    Answers ``look`` as a :class:`Watched` tensor does.
    """

    def __init__(self, reach: Callable[[], dict[str, Any]]) -> None:
        self._reach = reach
        self._were = reach()
        self._writers: dict[str, tuple[Capture | None, bool]] = {}

    def look(self, where: Capture | None, frame: FrameType | None) -> None:
        now = self._reach()
        for name, was in self._were.items():
            if name not in self._writers and name in now and _is_another(was, now[name]):
                self._writers[name] = where, _within_checkpoint(frame)

    def blame(self) -> tuple[str, Capture | None] | None:
        """What changed, in words, and where; rather what the function did not change itself."""
        now = self._reach()
        changed = [
            (inside, name, where)
            for name, (where, inside) in self._writers.items()
            if name in now and _is_another(self._were[name], now[name])
        ]
        if not changed:
            return None
        _, name, where = min(changed, key=lambda each: each[0])
        return f"`{name}` has changed: {_short(self._were[name])} -> {_short(now[name])}", where


def _is_another(was: Any, value: Any) -> bool:
    return type(was) is not type(value) or (was != value and (was == was or value == value))


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 40 else f"{text[:37]}..."


def _within_checkpoint(frame: FrameType | None) -> bool:
    import torch

    while frame is not None and frame.f_code.co_filename != torch.utils.checkpoint.__file__:
        frame = frame.f_back
    return frame is not None


@dataclass
class Region:
    """One run of a checkpointed function: what it was given, watched until it is run again."""

    watched: list[Watched | Rebound]
    settings: Settings
    preserve_rng_state: bool


class WrittenInputs:
    """The inputs that Functions wrote without marking them dirty: does anything use them afterwards?"""

    def __init__(self) -> None:
        self._cases: dict[Any, Case] = {}
        self._sought: Sought = {}
        self._sought_whole: Sought = {}
        self._looked_at: set[int] = set()
        self._begins = 0

    def add(self, key: Any, case: Case) -> None:
        """There may be thousands, so what is sought is kept, and not made for each backward pass."""
        self._begins = self._begins or case.after
        self._cases[key] = case
        if case.written is not None:
            seek(self._sought, case, case.written, case.after)
            seek(self._sought_whole, case, case.written, case.after, whole=True)

    def get(self, key: Any) -> Case | None:
        return self._cases.get(key)

    def __bool__(self) -> bool:
        return bool(self._cases)

    def follow(self, call: BackwardCall, run: Callable[[], None]) -> None:
        """One does harm if this backward pass, which ``run`` tries, sends it a gradient from a later use."""
        if not self._sought:
            return
        found = uses_in(call.nodes, self._sought)
        uses = [(case, use) for case, use in found if not case.harmful]
        if not uses:
            return
        used = call_sites.capture(call.frame)
        for case, _ in uses:
            case.judged, case.harmful, case.used = True, False, used
        for case in sends_gradients(uses, run):
            case.harmful = True

    def look(self, root: Any) -> None:
        """Was this node made from a written input? That counts if no backward pass runs over it."""
        if root is None or not self._sought_whole:
            return
        # What was looked at before was made before whatever has been written since.
        nodes = _made_since(root, self._begins, self._looked_at)
        for case, _ in uses_in(nodes, self._sought_whole):
            case.extended = True

    def written_at(self, where: Capture | None) -> Case | None:
        """What an input has come to that a call of this place wrote: the worst, if there were several."""
        there = [case for case in self._cases.values() if case.where == where]
        return max(there, key=lambda case: (bool(case.harmful), case.extended), default=None)


def _made_since(root: Any, number: int, seen: set[int]) -> list[Any]:
    """The nodes at and below ``root`` from this number on that are not among the seen, which then are."""
    found, stack = [], [root]
    while stack:
        node = stack.pop()
        if node is None or node._sequence_nr() < number or node._sequence_nr() in seen:
            continue
        seen.add(node._sequence_nr())
        found.append(node)
        stack.extend(child for child, _ in node.next_functions)
    return found


def is_again(entry: Entry, suspect: Suspect) -> bool:
    """Whether this run has seen the suspect's save changed, too."""
    if entry.values is None or not _same_place(entry.where, suspect.where):
        return False
    moved = entry.version_now is not None and entry.version_now != entry.version
    return bool(entry.values.changed) or moved or entry.relaid


def _same_place(here: Capture | None, there: Capture | None) -> bool:
    """Whether a save of this run is that of another one, which may know the library's line only."""
    return here == there or there is None or call_sites.is_library(there[0])
