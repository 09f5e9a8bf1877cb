"""The sentinel: saved-tensor hooks that note what autograd saved and check it when it is used.

``pack`` keeps what plain PyTorch would keep (the tensor itself for an input or a leaf, a detached alias
for an output, which would otherwise keep itself alive), its version, a digest of its content and the
user's line. ``unpack`` redoes PyTorch's version check, which hooks switch off, and compares the content.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable
from threading import get_ident
from types import CodeType, FrameType
from typing import TYPE_CHECKING, Any

from xxhash import xxh3_64_intdigest

from pytest_inplace.engine import values
from pytest_inplace.engine.ledger import INPUT, LEAF, OUTPUT, Lane, Ledger, Record, describe
from pytest_inplace.engine.quiet import quiet
from pytest_inplace.engine.torch_errors import detached_error, version_error
from pytest_inplace.reports import call_sites

if TYPE_CHECKING:
    import torch

Pack = Callable[["torch.Tensor"], "Record"]
Unpack = Callable[["Record"], "torch.Tensor"]


_OURS = "_pytest_inplace"


def _same_memory(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors are the same elements; those without elements have no memory to tell them by."""
    try:
        address = a.data_ptr()
        return (
            address != 0
            and address == b.data_ptr()
            and a.dtype == b.dtype
            and a.shape == b.shape
            and a.stride() == b.stride()
        )
    except RuntimeError:
        return False


def make_pack(ledger: Ledger, lane: Lane, walk: bool = True) -> Pack:
    """The pack hook of one thread that enters every saved tensor into ``ledger``, numbered by ``lane``.

    With ``walk`` it notes the user's line, else only that of the Python code that called the operation,
    which costs less and is enough where a second run follows.
    """
    import torch
    from torch.autograd.function import Function

    # Everything the hot path needs is a local: it runs once for every tensor that autograd saves.
    peek = torch._C._autograd._get_sequence_nr
    checkpoint = torch.utils.checkpoint.__file__  # saves its arguments without a node of its own
    function_modes = torch._C._len_torch_function_stack
    plain = values.plain_types()
    arrays = values._buffers
    array_of = values.buffer_type
    strided_digest = values._strided_digest
    layout = values.layout
    is_library = call_sites.is_library
    getframe = sys._getframe
    coverage = ledger.coverage
    resaved = _resaved
    apply: Any = Function.__dict__["apply"].__func__
    apply_code: CodeType = getattr(apply, "__wrapped__", apply).__code__

    on_saved = ledger.on_saved
    inplace_at = 0

    def pack(tensor: torch.Tensor, quietly: bool = False) -> Record:
        nonlocal inplace_at
        simple = type(tensor) in plain
        if not quietly and (not simple or function_modes()):
            with torch._C.DisableTorchFunction():
                return pack(tensor, True)
        try:
            frame = getframe(2 if quietly else 1)
        except ValueError:  # a device's thread, in a backward pass that is differentiated
            frame = getframe(0)
        code = frame.f_code
        node = tensor.grad_fn
        keep, kind, output_nr = tensor, LEAF, 0
        if node is not None:
            # An output is made by the node that saves it: the newest one of this thread. An operation in
            # place that needs what it overwrites saves a clone of that first, with a newer node still.
            number, following = node._sequence_nr(), peek()
            if code is apply_code:
                output = made_by(node, frame)
            elif number + 1 == following:
                inplace_at = following if type(node).__name__ == "CloneBackward0" else 0
                output = not (tensor._is_view() and remade(node, number)) and code.co_filename != checkpoint
            else:
                output = number + 2 == following == inplace_at
            if output:
                keep, kind, output_nr = tensor.detach(), OUTPUT, tensor.output_nr
            else:
                kind = INPUT
        if walk:
            outer: FrameType | None = frame
            while outer is not None and is_library(outer.f_code):
                outer = outer.f_back
            frame = outer or frame
            code = frame.f_code
        address = array = stride = raw = None
        digest: int | None
        try:
            nbytes = tensor.nbytes if simple else 0
            if nbytes and tensor.is_cpu:
                if tensor.is_contiguous():
                    mark = 0
                    array = arrays.get(nbytes) or array_of(nbytes)
                else:
                    run, offsets, step, mark = layout(tensor)
                    if offsets is not None and len(offsets) == step == 1:
                        array = array_of(run * tensor.element_size())
                        stride = tensor.stride()
                if array is not None and (address := tensor.data_ptr()):
                    raw = xxh3_64_intdigest(array.from_address(address))
                    digest = raw ^ mark
                else:
                    address, digest = None, slow_digest(tensor)
            else:
                digest = slow_digest(tensor)
        except RuntimeError:
            address, digest = None, slow_digest(tensor)
        if resaved:
            original = unpacked_here(tensor)
            if original is not None:
                # Double backward: plain PyTorch saves the original again, not the copy made by unpack.
                kind, output_nr, keep = original.kind, original.output_nr, original.tensor
        ordinal = lane.saves
        lane.saves = ordinal + 1
        record = Record(
            (
                keep, tensor._version, digest, array, address, kind, code, frame.f_lasti, ordinal,
                output_nr, ledger, False, stride, raw,
            )
        )  # fmt: skip
        if on_saved is not None:
            on_saved(record)
        return record

    def remade(node: Any, number: int) -> bool:
        # The node of a view whose base was written is made anew when it is looked at, just now. That of
        # a view written in place is newest, too, but then its base got its node in the same operation.
        below = node.next_functions[0][0]
        return below is not None and below._sequence_nr() + 1 != number

    def unpacked_here(tensor: torch.Tensor) -> Record | None:
        running: Any = torch._C._current_autograd_node()
        if running is None:
            _forget_resaved(None)
            return None
        number = _number(running)
        for of, ref in resaved:
            record = ref()
            if of == number and record is not None and _same_memory(record.tensor, tensor):
                return record
        return None

    def slow_digest(tensor: torch.Tensor) -> int | None:
        try:
            reason = values.unreadable(tensor)
            digest = None if reason is not None else strided_digest(tensor)
        except Exception as error:  # a tensor of a kind that we have not met
            reason, digest = f"{type(tensor).__name__} ({type(error).__name__})", None
        if digest is None:
            coverage.version_only += 1
            coverage.not_checked(f"content of {reason or 'no readable memory'}")
        return digest

    def made_by(node: Any, frame: Any) -> bool:
        # Forward may have built nodes of its own meanwhile, so sequence numbers say nothing here. Taking
        # an input made by the same Function for an output only means that an alias of it is kept.
        return type(node) is getattr(frame.f_locals.get("cls"), "_backward_cls", None)

    setattr(pack, _OURS, True)
    return pack


def is_ours(pair: tuple[Any, Any]) -> bool:
    """Whether this pair of hooks is one of ours, of this thread or any other."""
    return hasattr(pair[0], _OURS)


def make_unpack(active: Callable[[], Ledger | None]) -> Unpack:
    """The unpack hook: give back what plain PyTorch would use, and report or raise where that changed.

    ``active`` gives the ledger of the program that runs now, which may be a later one than that which
    saved the tensor (a graph held by a fixture, say).
    """
    import torch

    function_modes = torch._C._len_torch_function_stack
    grad_enabled = torch.is_grad_enabled

    def unpack(record: Record) -> torch.Tensor:
        __tracebackhide__ = True  # a version error must look as if PyTorch had raised it
        record[11] = True
        tensor: torch.Tensor = record[0]
        if grad_enabled():
            remember(record)
        address = record[4]
        # The memory that was hashed when it was saved, unless something was put in its place.
        if (
            address is not None
            and not function_modes()
            and tensor._version == record[1]
            and tensor.data_ptr() == address
            and (tensor.is_contiguous() if record[12] is None else tensor.stride() == record[12])
            and xxh3_64_intdigest(record[3].from_address(address)) == record[13]
            and (record[5] != INPUT or tensor.grad_fn is not None)
        ):
            return tensor
        with torch._C.DisableTorchFunction():
            return compare(record)

    def remember(record: Record) -> None:
        # A backward pass with create_graph=True: what a node unpacks it may save again.
        node: Any = torch._C._current_autograd_node()
        if node is None or record.kind == OUTPUT or record.hooks is not None:
            return
        number = _number(node)
        _forget_resaved(number)
        _resaved.append((number, weakref.ref(record)))

    def compare(record: Record) -> torch.Tensor:
        __tracebackhide__ = True
        tensor = record.tensor
        if _probe is not None:
            _probe.append(record)
            return tensor
        if record.hooks is not None:
            packed, unpack_it = record.hooks
            return unpack_it(packed)
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
            suspect.ordinal, suspect.record = None, weakref.ref(record)
        suspect.error = error_for(record, node) if moved else None
        ledger.suspects[record.ordinal if suspect.ordinal is not None else id(record)] = suspect
        if suspect.error is not None:
            # What was saved before this error and is never used is part of it, not a finding of its own.
            record.ledger.acknowledge()
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


_resaved: list[tuple[tuple[int, int], weakref.ref[Record]]] = []
"""What the node that runs now has unpacked in a backward pass that builds a graph."""
_probe: list[Record] | None = None


def _number(node: Any) -> tuple[int, int]:
    """A node that runs now; each thread counts its nodes for itself."""
    return get_ident(), node._sequence_nr()


def _forget_resaved(number: tuple[int, int] | None) -> None:
    """Forget what other nodes of this thread had unpacked."""
    thread = get_ident()
    if any(of != number and of[0] == thread for of, _ in _resaved):
        _resaved[:] = [each for each in _resaved if each[0] == number or each[0][0] != thread]


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
    return any(each is record for each in seen)
