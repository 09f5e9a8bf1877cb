"""The book of what a program saved: one record for each saved tensor, and what was suspicious about any.

Holds no tensor: each record belongs to autograd and dies with the graph.
"""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from pytest_inplace.engine import values
from pytest_inplace.engine.lanes import Here, Lane
from pytest_inplace.engine.rng import RandomStates
from pytest_inplace.reports.call_sites import Capture
from pytest_inplace.reports.findings import Coverage

if TYPE_CHECKING:
    import torch

LEAF, INPUT, OUTPUT = range(3)
"""How a node holds a tensor: a leaf or an input is the tensor itself, an output is an alias of it."""


class Record(list[Any]):
    """One saved tensor: what autograd holds in place of it. It lives exactly as long as autograd needs it.

    A list, because one is made for every tensor that autograd saves, and this is the cheapest object that
    can be referred to weakly. The hot path uses the positions below, everybody else the names.
    """

    __slots__ = ("__weakref__",)
    TENSOR, VERSION, DIGEST, BUFFER, ADDRESS, STRIDE, RAW, OTHERS, KIND, LEDGER, ORDINAL, CODE, LASTI = range(
        13
    )

    __eq__ = object.__eq__
    __hash__ = object.__hash__  # type: ignore[assignment]

    @property
    def tensor(self) -> torch.Tensor:
        return self[0]  # type: ignore[no-any-return]

    @property
    def version(self) -> int:
        return self[1]  # type: ignore[no-any-return]

    @property
    def digest(self) -> int | None:
        return self[2]  # type: ignore[no-any-return]

    @property
    def kind(self) -> int:
        return self[8]  # type: ignore[no-any-return]

    @property
    def ledger(self) -> Ledger:
        return self[9]  # type: ignore[no-any-return]

    @property
    def ordinal(self) -> int:
        return self[10]  # type: ignore[no-any-return]

    @property
    def where(self) -> Capture | None:
        return self[11], self[12]

    @property
    def used(self) -> bool:
        return type(self) is Record

    def mark_used(self) -> None:
        """Count it as seen: it is then no latent suspect when it dies."""

    @property
    def hooks(self) -> tuple[Any, Callable[[Any], torch.Tensor]] | None:
        """What the user's own pack hook made of this one tensor, and the unpack hook to be given that."""
        return self[13] if len(self) > 13 else None

    def give_to(self, packed: Any, unpack: Callable[[Any], torch.Tensor]) -> None:
        """Leave the tensor to hooks of the user's, which keep what they like of it."""
        self.mark_used()
        self[0], self[4] = self[0].new_empty(0), None
        self.append((packed, unpack))

    def accept(self, digest: int | None) -> None:
        """Take the present content for the saved one."""
        self[2] = digest
        self[4] = None  # no shortcut to the memory as it was


class UnusedRecord(Record):
    """A record that no backward pass has used yet: only these are looked at when they die.

    The first use makes a plain :class:`Record` of it, whose death then costs no call of ours.
    """

    __slots__ = ()

    def mark_used(self) -> None:
        self[9].waiting -= 1
        self.__class__ = Record  # type: ignore[assignment]

    def __del__(self) -> None:
        ledger = self[9]
        ledger.waiting -= 1
        ledger.dropped(self)


@dataclass
class Suspect:
    """A save whose version or content was not what it had been; judged later, by the replay."""

    ordinal: int | None
    where: Capture | None
    used: Capture | None
    op: str | None
    leaf: bool
    shape: tuple[int, ...]
    dtype: str
    device: str
    version_saved: int
    version_now: int
    latent: bool = False
    needs_extension: bool = False
    error: BaseException | None = None
    kind: str = "saved"
    key: Any = None
    record: weakref.ref[Record] | None = None
    """Set where the save was before the program: in an earlier one, or in what surrounds it."""

    @property
    def is_from_before(self) -> bool:
        return self.record is not None


@dataclass
class Ledger:
    """What one watched program saved. Holds no tensor: each record belongs to autograd."""

    coverage: Coverage = field(default_factory=Coverage)
    suspects: dict[object, Suspect] = field(default_factory=dict)
    closed: bool = False
    lanes: list[Lane] = field(default_factory=lambda: [Lane(0), Lane(Lane.BEYOND)])
    here: Here = field(default_factory=Here)
    accepted: dict[int, int] = field(default_factory=dict)
    on_held: Callable[[Any], None] | None = None
    on_saved: Callable[[Record], None] | None = None
    on_dropped: Callable[[Record], None] | None = None
    on_unused: Callable[[Any], None] | None = None
    waiting: int = 0
    kept: weakref.WeakSet[Any] = field(default_factory=weakref.WeakSet)
    """What keeps tensors outside autograd: each has ``used`` and ``dropped()``, as a record has."""
    _is_beyond: bool = False

    @contextlib.contextmanager
    def beyond(self) -> Iterator[None]:
        """Number what is saved inside apart, for a second run of the program does not do it again."""
        if self._is_beyond:
            yield
            return
        own, beyond = self.lanes[0], self.lanes[Lane.BEYOND]
        self._is_beyond = True
        # Exchanged, not replaced: the hooks of this thread count in the lane that they were made for.
        own.counts, beyond.counts = beyond.counts, own.counts
        try:
            yield
        finally:
            own.counts, beyond.counts = beyond.counts, own.counts
            self._is_beyond = False

    @contextlib.contextmanager
    def as_if_not_run(self) -> Iterator[None]:
        """What runs inside, on trial, takes no numbers from the run, neither random ones nor ordinals."""
        states = RandomStates.capture()
        lane = self.lane
        counts = lane.counts
        try:
            yield
        finally:
            lane.counts = counts
            states.restore()

    @property
    def saves(self) -> int:
        """How many tensors all threads saved."""
        return sum(Lane.position(lane.saves) for lane in self.lanes)

    @property
    def lane(self) -> Lane:
        """The lane of this thread; of a thread that is not watched, that of the first."""
        return self.here.lane or self.lanes[0]

    def new_lane(self) -> Lane:
        """A lane for one more thread."""
        lane = Lane(len(self.lanes))
        self.lanes.append(lane)
        return lane

    @contextlib.contextmanager
    def unclaimed(self) -> Iterator[None]:
        """What this thread saves inside and never uses is no finding."""
        lane = self.lane
        # What is numbered apart goes by the numbers of another lane.
        span = self.lanes[lane.saves >> Lane.BITS].span_from(lane.saves)
        try:
            yield
        finally:
            span[1] = lane.saves

    def _acknowledged(self, ordinal: int) -> bool:
        return self.lanes[ordinal >> Lane.BITS].acknowledges(ordinal)

    def close(self) -> None:
        """End the watch: look at what is still saved and unused, and ignore what dies later."""
        if self.closed:
            return
        self.drop_unused()
        self.count()
        self.closed = True

    def count(self) -> None:
        """Enter into the coverage how many tensors were saved by now."""
        self.coverage.saved = self.saves
        self.coverage.content_checked = self.coverage.saved - self.coverage.version_only

    def drop_unused(self) -> None:
        """Look now at the records that no backward pass has used, as if they died here."""
        for record in self.alive():
            self.dropped(record)
        for keeper in list(self.kept):
            if not keeper.used:
                keeper.dropped()

    def acknowledge(self) -> None:
        """What was saved until now and is never used is no finding: the program failed, or was skipped."""
        for lane in self.lanes:
            self.lanes[lane.saves >> Lane.BITS].acknowledged = lane.saves
        for keeper in list(self.kept):
            keeper.used = True

    def unused(self, suspect: Suspect) -> None:
        """What somebody keeps outside autograd has changed, and no backward pass asked for it."""
        suspect.latent = True
        self.suspects.setdefault(suspect.key, suspect)
        if self.on_unused is not None:
            self.on_unused(suspect.key)

    @contextlib.contextmanager
    def guarding(self, what: str) -> Iterator[None]:
        """Our own part around the user's code: if it fails, that is counted, and the user's code goes on."""
        try:
            yield
        except Exception as error:
            self.coverage.not_checked(f"{what}: {type(error).__name__} in the check itself")

    def take_suspects(self) -> list[Suspect]:
        """The suspects since the last call."""
        taken = list(self.suspects.values())
        self.suspects.clear()
        return taken

    def alive(self) -> list[UnusedRecord]:
        """The records that autograd holds now and that no backward pass has used, oldest first.

        Nobody keeps a list of them, which would cost every save; what is alive the garbage collector
        knows. Its young generations are small and are asked first.
        """
        found: list[UnusedRecord] = []
        if not self.saves:
            return found
        for generation in range(3):
            if len(found) >= self.waiting and len(self.lanes) == 2:  # threads may count at once
                break
            objects = gc.get_objects(generation=generation)
            found += [o for o in objects if type(o) is UnusedRecord and o[9] is self]
        return sorted(found, key=lambda record: record.ordinal)

    def dropped(self, record: Record) -> None:
        """A record died before any backward pass used it: a latent suspect if its tensor had changed."""
        try:
            if self.closed or self._acknowledged(record.ordinal) or not sys or sys.is_finalizing():
                return
            if self.on_dropped is not None:
                self.on_dropped(record)
            suspect = latent_suspect(record)
            if suspect is not None:
                self.suspects.setdefault(record.ordinal, suspect)
        except Exception as error:  # a destructor has nobody to tell
            self.coverage.not_checked(f"error in the check of an unused graph: {type(error).__name__}")


def requires_grad_leaf(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` is a leaf that requires grad or shares memory, as a view, with one."""
    base = tensor._base
    if base is not None and base.grad_fn is not None:
        return False
    if tensor.grad_fn is None:
        return tensor.requires_grad
    return base is not None and base.requires_grad


def is_intermediate(record: Record) -> bool:
    """Whether the tensor was computed from something that requires grad, or is a view of such a one."""
    return record.kind == OUTPUT or _base(record.tensor).grad_fn is not None


def is_statistic(record: Record) -> bool:
    """Whether it is a tensor of the kind that BatchNorm updates behind the version counter."""
    return not is_intermediate(record) and not _base(record.tensor).requires_grad


def _base(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor._base is None else tensor._base


def latent_suspect(record: Record) -> Suspect | None:
    """The suspect for a record that no backward pass used, or ``None`` if its tensor is what was saved.

    An optimizer step, an averaging of weights or the refill of a data buffer while an unused graph is
    alive is normal code, so for anything but an intermediate the replay must show more: that the graph
    was still being built on when the write came.
    """
    import torch

    with torch._C.DisableTorchFunction():
        tensor = record.tensor
        moved = tensor._version != record.ledger.accepted.get(record.ordinal, record.version)
        changed = moved or values.rewritten(tensor, record.digest)
        if not changed or torch._C._current_graph_task_id() != -1:
            # Freed by a backward pass that ran and did not need it.
            return None
        if not moved and is_statistic(record):
            return None
        suspect = describe(record, None, None)
    suspect.latent = True
    suspect.needs_extension = not is_intermediate(record)
    return suspect


def describe(record: Record, used: Capture | None, op: str | None) -> Suspect:
    """The facts about a changed record, without its values."""
    tensor = record.tensor
    suspect = Suspect(
        record.ordinal,
        record.where,
        used,
        op,
        record.kind != OUTPUT and requires_grad_leaf(tensor),
        tuple(tensor.shape),
        values.dtype_name(tensor),
        str(tensor.device),
        record.version,
        tensor._version,
    )
    if record.ordinal >> Lane.BITS == Lane.BEYOND:
        suspect.ordinal, suspect.record = None, weakref.ref(record)
    return suspect
