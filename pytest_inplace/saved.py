"""The sentinel: saved-tensor hooks that note what autograd saved and check it when it is used.

``pack`` keeps what plain PyTorch would keep (the tensor itself for an input or a leaf, a detached alias
for an output, which would otherwise keep itself alive), its version, a digest of its content and the
user's line. ``unpack`` redoes PyTorch's version check, which hooks switch off, and compares the content.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from types import CodeType
from typing import TYPE_CHECKING, Any

from xxhash import xxh3_64_intdigest

from pytest_inplace import call_sites, values
from pytest_inplace.call_sites import Capture
from pytest_inplace.findings import Coverage
from pytest_inplace.quiet import quiet
from pytest_inplace.torch_errors import detached_error, version_error

if TYPE_CHECKING:
    import torch

Pack = Callable[["torch.Tensor"], "Record"]
Unpack = Callable[["Record"], "torch.Tensor"]


LEAF, INPUT, OUTPUT = range(3)
"""How a node holds a tensor: a leaf or an input is the tensor itself, an output is an alias of it."""


class Record:
    """One saved tensor: what autograd holds in place of it. It lives exactly as long as autograd needs it."""

    __slots__ = (
        "__weakref__", "digest", "kind", "ledger", "ordinal",
        "output_nr", "tensor", "used", "version", "where",
    )  # fmt: skip

    def __init__(
        self,
        tensor: torch.Tensor,
        version: int,
        digest: int | None,
        ordinal: int,
        where: Capture | None,
        kind: int,
        output_nr: int,
        ledger: Ledger,
    ) -> None:
        self.tensor = tensor
        self.version = version
        self.digest = digest
        self.ordinal = ordinal
        self.where = where
        self.kind = kind
        self.output_nr = output_nr
        self.ledger = ledger
        self.used = False

    def __del__(self) -> None:
        self.ledger.died += 1
        if not self.used:
            self.ledger.dropped(self)


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


@dataclass
class Ledger:
    """What one watched program saved. Holds no tensor: each record belongs to autograd."""

    coverage: Coverage = field(default_factory=Coverage)
    suspects: dict[object, Suspect] = field(default_factory=dict)
    closed: bool = False
    saves: int = 0
    acknowledged: int = 0
    accepted: dict[int, int] = field(default_factory=dict)
    holds: int = 0
    calls: int = 0
    on_held: Callable[[Any], None] | None = None
    on_saved: Callable[[Record], None] | None = None
    on_dropped: Callable[[Record], None] | None = None
    died: int = 0

    def close(self) -> None:
        """End the watch: look at what is still saved and unused, and ignore what dies later."""
        if self.closed:
            return
        self.drop_unused()
        self.coverage.saved = self.saves
        self.coverage.content_checked = self.coverage.saved - self.coverage.version_only
        self.closed = True

    def drop_unused(self) -> None:
        """Look now at the records that no backward pass has used, as if they died here."""
        for record in self.alive():
            if not record.used:
                self.dropped(record)

    def take_suspects(self) -> list[Suspect]:
        """The suspects since the last call."""
        taken = list(self.suspects.values())
        self.suspects.clear()
        return taken

    def alive(self) -> list[Record]:
        """The records that autograd holds now. Costs a walk over all objects, if there are any."""
        if self.died >= self.saves:
            return []
        found = (o for o in gc.get_objects() if type(o) is Record)
        return sorted((r for r in found if r.ledger is self), key=lambda r: r.ordinal)

    def dropped(self, record: Record) -> None:
        """A record died before any backward pass used it: a latent suspect if its tensor had changed."""
        try:
            if self.closed or record.ordinal < self.acknowledged or not sys or sys.is_finalizing():
                return
            if self.on_dropped is not None:
                self.on_dropped(record)
            suspect = latent_suspect(record)
            if suspect is not None:
                self.suspects.setdefault(record.ordinal, suspect)
        except Exception as error:  # a destructor has nobody to tell
            self.coverage.not_checked(f"error in the check of an unused graph: {type(error).__name__}")


def _same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    try:
        return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()
    except RuntimeError:
        return False


def requires_grad_leaf(tensor: torch.Tensor) -> bool:
    """Whether ``tensor`` is a leaf that requires grad or shares memory, as a view, with one."""
    if tensor.grad_fn is None:
        return tensor.requires_grad
    base = tensor._base
    return base is not None and base.grad_fn is None and base.requires_grad


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
        changed = moved or (record.digest is not None and values.digest(tensor) != record.digest)
        if not changed or torch._C._current_graph_task_id() != -1:
            # Freed by a backward pass that ran and did not need it.
            return None
        base = tensor if tensor._base is None else tensor._base
        intermediate = record.kind == OUTPUT or base.grad_fn is not None
        if not intermediate and not moved and not base.requires_grad:
            return None  # statistics that a layer updates behind the version counter, as BatchNorm does
        suspect = describe(record, None, None)
    suspect.latent = True
    suspect.needs_extension = not intermediate
    return suspect


def describe(record: Record, used: Capture | None, op: str | None) -> Suspect:
    """The facts about a changed record, without its values."""
    tensor = record.tensor
    return Suspect(
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


def make_pack(ledger: Ledger) -> Pack:
    """The pack hook that enters every saved tensor into ``ledger``."""
    import torch
    from torch.autograd.function import Function

    # Everything the hot path needs is a local: it runs once for every tensor that autograd saves.
    peek = torch._C._autograd._get_sequence_nr
    checkpoint_file = torch.utils.checkpoint.__file__
    function_modes = torch._C._len_torch_function_stack
    plain = values.plain_types()
    buffers = values._buffers
    buffer_type = values.buffer_type
    strided_digest = values._strided_digest
    library = call_sites._is_library
    is_library = call_sites.is_library
    getframe = sys._getframe
    coverage = ledger.coverage
    resaved = _resaved
    apply: Any = Function.__dict__["apply"].__func__
    apply_code: CodeType = getattr(apply, "__wrapped__", apply).__code__

    def pack(tensor: torch.Tensor) -> Record:
        if type(tensor) not in plain or function_modes():
            return pack_exotic(tensor)
        frame = getframe(1)
        function = frame if frame.f_code is apply_code else None
        return enter(tensor, frame, function)

    def enter(tensor: torch.Tensor, frame: Any, function: Any) -> Record:
        version = tensor._version
        node = tensor.grad_fn
        if node is None:
            kind, output_nr, keep = LEAF, 0, tensor
        elif newest(tensor, node, frame) if function is None else made_by(node, function):
            kind, output_nr, keep = OUTPUT, tensor.output_nr, tensor.detach()
        else:
            kind, output_nr, keep = INPUT, tensor.output_nr, tensor
        where: Capture | None
        digest: int | None
        while True:
            code = frame.f_code
            inside = library.get(code)
            if inside is None:
                inside = is_library(code)
            if not inside:
                where = (code, frame.f_lasti)
                break
            frame = frame.f_back
            if frame is None:
                where = None
                break
        try:
            nbytes = tensor.nbytes
            if nbytes and tensor.is_contiguous() and tensor.is_cpu:
                array = buffers.get(nbytes) or buffer_type(nbytes)
                digest = xxh3_64_intdigest(array.from_address(tensor.data_ptr() or unmapped()))
            else:
                digest = slow_digest(tensor)
        except RuntimeError:
            digest = slow_digest(tensor)
        if resaved:
            original = unpacked_here(tensor)
            if original is not None:
                # Double backward: plain PyTorch saves the original again, not the copy made by unpack.
                kind, output_nr, keep = original.kind, original.output_nr, original.tensor
        ordinal = ledger.saves
        ledger.saves = ordinal + 1
        record = Record(keep, version, digest, ordinal, where, kind, output_nr, ledger)
        if ledger.on_saved is not None:
            ledger.on_saved(record)
        return record

    def newest(tensor: torch.Tensor, node: Any, frame: Any) -> bool:
        # An output is made by the node that saves it: the newest one of this thread.
        number = node._sequence_nr()
        if number + 1 != peek():
            return False
        if frame.f_code.co_filename == checkpoint_file:
            return False  # checkpoint saves its arguments without a node of its own
        if not tensor._is_view():
            return True
        # The node of a view whose base was written is made anew when it is looked at, just now. That of
        # a view written in place is newest, too, but then its base got its node in the same operation.
        below = node.next_functions[0][0]
        return below is None or below._sequence_nr() + 1 == number

    def unpacked_here(tensor: torch.Tensor) -> Record | None:
        running: Any = torch._C._current_autograd_node()
        if running is None:
            resaved.clear()
            return None
        number = running._sequence_nr()
        for of, ref in resaved:
            record = ref()
            if of == number and record is not None and _same_memory(record.tensor, tensor):
                return record
        return None

    def unmapped() -> int:
        raise RuntimeError("no memory")

    def slow_digest(tensor: torch.Tensor) -> int | None:
        reason = values.unreadable(tensor)
        digest = None
        if reason is None:
            digest = strided_digest(tensor)
            if digest is None:
                reason = "no readable memory"
        if reason is not None:
            coverage.version_only += 1
            coverage.not_checked(f"content of {reason}")
        return digest

    def made_by(node: Any, frame: Any) -> bool:
        # Forward may have built nodes of its own meanwhile, so sequence numbers say nothing here. Taking
        # an input made by the same Function for an output only means that an alias of it is kept.
        return type(node) is getattr(frame.f_locals.get("cls"), "_backward_cls", None)

    def pack_exotic(tensor: torch.Tensor) -> Record:
        frame = getframe(2)
        with torch._C.DisableTorchFunction():
            return enter(tensor, frame, frame if frame.f_code is apply_code else None)

    return pack


def make_unpack(active: Callable[[], Ledger | None]) -> Unpack:
    """The unpack hook: give back what plain PyTorch would use, and report or raise where that changed.

    ``active`` gives the ledger of the program that runs now, which may be a later one than that which
    saved the tensor (a graph held by a fixture, say).
    """
    import torch

    function_modes = torch._C._len_torch_function_stack
    plain = values.plain_types()
    buffers = values._buffers
    buffer_type = values.buffer_type

    grad_enabled = torch.is_grad_enabled

    def unpack(record: Record) -> torch.Tensor:
        __tracebackhide__ = True  # a version error must look as if PyTorch had raised it
        record.used = True
        tensor = record.tensor
        if grad_enabled():
            remember(record)
        if type(tensor) not in plain or function_modes():
            with torch._C.DisableTorchFunction():
                return compare(record)
        if tensor._version == record.version and (record.kind != INPUT or tensor.grad_fn is not None):
            digest = record.digest
            if digest is None:
                return tensor
            try:
                nbytes = tensor.nbytes
                if nbytes and tensor.is_contiguous():
                    kind = buffers.get(nbytes) or buffer_type(nbytes)
                    if xxh3_64_intdigest(kind.from_address(tensor.data_ptr())) == digest:
                        return tensor
                elif values.digest(tensor) == digest:
                    return tensor
            except RuntimeError:
                pass
        return compare(record)

    def remember(record: Record) -> None:
        # A backward pass with create_graph=True: what a node unpacks it may save again.
        node: Any = torch._C._current_autograd_node()
        if node is None or record.kind == OUTPUT:
            return
        number = node._sequence_nr()
        if any(of != number for of, _ in _resaved):
            _resaved.clear()
        _resaved.append((number, weakref.ref(record)))

    def compare(record: Record) -> torch.Tensor:
        __tracebackhide__ = True
        tensor = record.tensor
        if _probe is not None:
            _probe.append(record)
            return tensor
        if is_detached(record):
            raise detached_error()
        moved = tensor._version != record.version
        if not moved and (record.digest is None or values.digest(tensor) == record.digest):
            return tensor
        ledger = active()
        if ledger is None:
            if moved:
                raise error_for(record, torch._C._current_autograd_node())
            return tensor
        if not moved and unused_statistics(record):
            return tensor
        node = torch._C._current_autograd_node()
        if moved and record.ledger.accepted.get(record.ordinal) == tensor._version:
            raise error_for(record, node)  # the test accepts the write; PyTorch still does not
        suspect = describe(record, call_sites.capture(sys._getframe(1)), node.name() if node else None)
        if record.ledger is not ledger:
            suspect.ordinal = None
        suspect.error = error_for(record, node) if moved else None
        ledger.suspects[record.ordinal if suspect.ordinal is not None else id(record)] = suspect
        if suspect.error is not None:
            # What was saved before this error and is never used is part of it, not a finding of its own.
            record.ledger.acknowledged = record.ledger.saves
            raise suspect.error
        return tensor

    return unpack


def is_detached(record: Record) -> bool:
    """Whether an input with a history lost it through ``detach_()``, which PyTorch refuses in backward."""
    return record.kind == INPUT and record.tensor.grad_fn is None


def error_for(record: Record, node: Any) -> RuntimeError:
    """PyTorch's version error for a record, as the plain saved variable would raise it."""
    tensor = record.tensor
    if record.kind == OUTPUT:
        producer, output_nr = node.name() if node is not None else None, record.output_nr
    else:
        producer = tensor.grad_fn.name() if tensor.grad_fn is not None else None
        output_nr = record.output_nr
    with quiet():
        return version_error(tensor, producer, output_nr, record.version, tensor._version)


_resaved: list[tuple[int, weakref.ref[Record]]] = []
"""What the node that runs now has unpacked in a backward pass that builds a graph."""
_probe: list[Record] | None = None


def unused_statistics(record: Record) -> bool:
    """Whether the tensor is the running statistics of a BatchNorm in training mode.

    Such a layer saves its statistics, updates them in the same forward pass, and never reads them in
    its backward, so that they always differ and never matter.
    """
    global _probe
    import torch

    node: Any = torch._C._current_autograd_node()
    if node is None or "BatchNorm" not in node.name() or record.tensor.dim() != 1:
        return False
    if not getattr(node, "_saved_training", getattr(node, "_saved_train", False)):
        return False
    # Which of the node's saved tensors is this one? Reading its attribute runs our own hook.
    seen: list[Record] = []
    _probe = seen
    try:
        for name in ("_saved_running_mean", "_saved_running_var"):
            getattr(node, name, None)
    finally:
        _probe = None
    return record in seen
