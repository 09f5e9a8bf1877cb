"""What the second run learns about each suspect: who wrote, which values changed, what the verdict was."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import FrameType
from typing import TYPE_CHECKING, Any

from pytest_inplace.engine import names, values
from pytest_inplace.engine.held import unambiguous
from pytest_inplace.engine.reach import Named, is_alias
from pytest_inplace.engine.references import TensorRef
from pytest_inplace.reports.call_sites import Capture
from pytest_inplace.reports.findings import GradientError, TensorInfo, ValueDiff

if TYPE_CHECKING:
    import torch

    from pytest_inplace.engine.ledger import Record


@dataclass
class Evidence:
    """The parts that a finding is made of, whatever kept the tensor."""

    name: str | None = None
    op: str | None = None
    writer: Capture | None = None
    version_writer: Capture | None = None
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
    written_at: int | None = None
    relaid: bool = False
    """Whether the same values came to lie in another layout of memory, which a digest takes for a change."""


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
        return values.digest(tensor) != self.digest

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
    tensor: TensorInfo | None = None
    edge: tuple[Any, int] | None = None
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


@dataclass
class Region:
    """One run of a checkpointed function: what it was given, watched until it is run again."""

    watched: list[Watched | Rebound]
    preserve_rng_state: bool
