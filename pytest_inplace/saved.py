"""The sentinel: saved-tensor hooks that note what autograd saved and check it when it is used.

``pack`` keeps what plain PyTorch would keep (the tensor itself for an input or a leaf, a detached alias
for an output, which would otherwise keep itself alive), its version, a digest of its content and the
user's line. ``unpack`` redoes PyTorch's version check, which hooks switch off, and compares the content.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from types import CodeType
from typing import TYPE_CHECKING, Any

from xxhash import xxh3_64_intdigest

from pytest_inplace import call_sites, values
from pytest_inplace.call_sites import Capture
from pytest_inplace.ledger import INPUT, LEAF, OUTPUT, Ledger, Record, describe
from pytest_inplace.quiet import quiet
from pytest_inplace.torch_errors import detached_error, version_error

if TYPE_CHECKING:
    import torch

Pack = Callable[["torch.Tensor"], "Record"]
Unpack = Callable[["Record"], "torch.Tensor"]


def _same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    try:
        return a.data_ptr() == b.data_ptr() and a.shape == b.shape and a.stride() == b.stride()
    except RuntimeError:
        return False


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

    inplace_at = 0

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
            kind, output_nr, keep = INPUT, 0, tensor
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
        nonlocal inplace_at
        number, following = node._sequence_nr(), peek()
        if number + 1 != following:
            # An operation in place that needs what it overwrites saves a clone of that first, whose node
            # is then newer than its own.
            return bool(number + 2 == following == inplace_at)
        inplace_at = following if type(node).__name__ == "CloneBackward0" else 0
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
        if not moved and written_by_its_own_operation(record):
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


def written_by_its_own_operation(record: Record) -> bool:
    """Whether the operation that saved the tensor wrote it after saving it, as is its way.

    A BatchNorm in training mode saves its running statistics, updates them in the same forward pass and
    never reads them in its backward, so that they always differ and never matter.
    """
    global _probe
    import torch

    node: Any = torch._C._current_autograd_node()
    if node is None:
        return False
    if node.name().startswith("RreluWithNoise"):
        return record.kind == LEAF  # the noise is saved before the operation itself fills it
    if "BatchNorm" not in node.name() or record.tensor.dim() != 1:
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
