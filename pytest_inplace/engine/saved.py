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
from types import FrameType
from typing import TYPE_CHECKING, Any

from xxhash import xxh3_64_intdigest

from pytest_inplace.engine import releases, values
from pytest_inplace.engine.lanes import Lane
from pytest_inplace.engine.ledger import INPUT, LEAF, OUTPUT, Ledger, Record, UnusedRecord, describe
from pytest_inplace.engine.outputs import make_is_output, passing_references
from pytest_inplace.engine.quiet import make_alias, profiler_state, quiet
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
            and a.is_conj() == b.is_conj()
            and a.is_neg() == b.is_neg()
        )
    except RuntimeError:
        return False


def make_pack(ledger: Ledger, lane: Lane, walk: bool = True) -> Pack:
    """The pack hook of one thread that enters every saved tensor into ``ledger``, numbered by ``lane``.

    With ``walk`` it notes the user's line, else only that of the Python code that called the operation,
    which costs less and is enough where a second run follows.
    """
    import torch

    # Everything the hot path needs is a local: it runs once for every tensor that autograd saves.
    function_modes = torch._C._len_torch_function_stack
    dispatch_modes = torch._C._len_torch_dispatch_stack
    plain = values.plain_types()
    arrays = values._buffers
    array_of = values.buffer_type
    strided_digest = values._strided_digest
    layouts = values._layouts
    layout_of = values.layout
    lazy_types = values.lazy_types()
    digest_runs = values.digest_runs
    is_library = call_sites.is_library
    getframe = sys._getframe
    references = sys.getrefcount
    coverage = ledger.coverage
    resaved = _resaved
    apply_code = releases.apply_code()
    is_output = make_is_output()
    alias, profiling = make_alias(), profiler_state()
    passing = passing_references()
    peek = torch._C._autograd._get_sequence_nr
    on_saved = ledger.on_saved
    aliased_at, aliased_from = -1, 0

    def pack(tensor: torch.Tensor, quietly: bool = False) -> Record:
        nonlocal aliased_at, aliased_from
        simple = type(tensor) in plain
        if not quietly and (not simple or function_modes()):
            with torch._C.DisableTorchFunction():
                return pack(tensor, True)
        try:
            frame = getframe(2 if quietly else 1)
        except ValueError:  # a device's thread, in a backward pass that is differentiated
            frame = getframe(0)
        code = frame.f_code
        version = tensor._version
        keep, kind = tensor, LEAF
        if not tensor.is_leaf:
            held = references(tensor)
            kind = INPUT
            # A dispatch mode sees this alias of an output, as it sees PyTorch's where there are no hooks.
            if quietly or code is apply_code or dispatch_modes():
                if is_output(tensor, frame, aliased_at, aliased_from):
                    keep, kind = alias(tensor), OUTPUT
            elif version and (held > passing or tensor._is_view()):
                # A view of a leaf that requires grad cannot have been written by an operation with a node.
                base = tensor._base
                if (base is None or not base.is_leaf) and is_output(tensor, frame, aliased_at, aliased_from):
                    keep, kind = alias(tensor), OUTPUT
            elif held <= passing and not tensor._is_view():
                # No variable refers to it: an output, or what one operation passes on to the next. That can
                # be changed through its memory only, so an alias is as good.
                keep, kind = alias(tensor) if profiling() else tensor.detach(), OUTPUT
                if (following := peek()) != aliased_at:
                    aliased_at, aliased_from = following, lane.saves
        if walk:
            outer: FrameType | None = frame
            while outer is not None and is_library(outer.f_code):
                outer = outer.f_back
            frame = outer or frame
            code = frame.f_code
        elif code is apply_code:  # who calls a Function is one line each, as that of an operation
            frame = caller_of(frame)
            code = frame.f_code
        address = array = stride = others = raw = None
        digest: int | None
        try:
            nbytes = tensor.nbytes if simple and tensor.dtype not in lazy_types else 0
            if nbytes and tensor.is_cpu and (address := tensor.data_ptr()):
                if tensor.is_contiguous():
                    array = arrays.get(nbytes) or array_of(nbytes)
                    digest = raw = xxh3_64_intdigest(array.from_address(address))
                else:
                    known = layouts.get((tensor.shape, tensor.stride(), nbytes)) or layout_of(tensor)
                    array, stride, others, mark = known
                    if others is None:
                        address, digest = None, slow_digest(tensor)
                    else:
                        if others:
                            raw = digest_runs(array, address, others)
                        else:
                            raw = xxh3_64_intdigest(array.from_address(address))
                        digest = raw ^ mark
            else:
                address, digest = None, slow_digest(tensor)
        except RuntimeError:
            address, digest = None, slow_digest(tensor)
        if resaved:
            original = unpacked_here(tensor)
            if original is not None:
                # Double backward: plain PyTorch saves the original again, not the copy made by unpack.
                kind, keep = original.kind, original.tensor
        ordinal = lane.saves
        lane.saves = ordinal + 1
        ledger.waiting += 1
        record = UnusedRecord(
            (
                keep, version, digest, array, address, stride, raw, others, kind, ledger, ordinal,
                code, frame.f_lasti,
            )
        )  # fmt: skip
        if on_saved is not None:
            on_saved(record)
        return record

    def unpacked_here(tensor: torch.Tensor) -> Record | None:
        running: Any = torch._C._current_autograd_node()
        if running is None:
            _forget_resaved(None)
            return None
        number = _number(running)
        for of, ref in resaved:
            record = ref()
            if of != number or record is None or tensor._is_view():
                continue  # a view that the node took of what it unpacked has a history of its own
            history, was = tensor.grad_fn, record.tensor
            if history is values.node_of(was) and (
                _same_memory(was, tensor)
                # Without elements there is no memory to tell by, but one output of a node is one tensor.
                or (history is not None and not tensor.numel() and tensor.output_nr == was.output_nr)
            ):
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

    setattr(pack, _OURS, True)
    return pack


def caller_of(frame: FrameType) -> FrameType:
    """The frame that called a custom Function, past torch's and the one that we put around it."""
    from pytest_inplace.engine import functions

    inside = frame.f_code.co_filename, functions.__file__
    outer: FrameType | None = frame
    while outer is not None and outer.f_code.co_filename in inside:
        outer = outer.f_back
    return outer or frame


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
    digest_runs = values.digest_runs
    unused = UnusedRecord

    def unpack(record: Record) -> torch.Tensor:
        __tracebackhide__ = True  # a version error must look as if PyTorch had raised it
        if _probe is not None:
            _probe.append(record)
            return record.tensor
        if type(record) is unused:
            # As mark_used() does, without the call.
            record[9].waiting -= 1
            record.__class__ = Record  # type: ignore[assignment]
        if grad_enabled():
            remember(record)
        tensor: torch.Tensor = record[0]
        address = record[4]
        # The memory that was hashed when it was saved, unless something was put in its place.
        if (
            address is not None
            and not function_modes()
            and tensor._version == record[1]
            and tensor.data_ptr() == address
            and (record[8] != INPUT or not tensor.is_leaf)
        ):
            stride, others = record[5], record[7]
            if tensor.is_contiguous() if stride is None else tensor.stride() == stride:
                if others:
                    now = digest_runs(record[3], address, others)
                else:
                    now = xxh3_64_intdigest(record[3].from_address(address))
                if now == record[6]:
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
        if record.hooks is not None:
            packed, unpack_it = record.hooks
            return unpack_it(packed)
        if is_detached(record):
            raise detached_error()
        moved = tensor._version != record.version
        if not moved and not values.rewritten(tensor, record.digest):
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
    producer, output_nr = None, 0
    if record.kind == OUTPUT:
        producer, output_nr = _origin(record, node) if node is not None else (None, 0)
    elif tensor.grad_fn is not None:
        producer = tensor.grad_fn.name()
    with quiet():
        return version_error(tensor, producer, output_nr, record.version, tensor._version)


def _origin(record: Record, node: Any) -> tuple[str, int]:
    """What made a tensor of which an alias is kept, and which output of that it is: autograd knows both."""
    for name in [*(n for n in dir(node) if n.startswith("_saved_")), "saved_tensors"]:
        found, looked_at = _looking_at(node, name)
        if all(each is not record for each in looked_at):
            continue
        given = [v for v in (found if isinstance(found, list | tuple) else [found]) if v is not None]
        if record.tensor.nbytes:
            same = [v for v in given if _same_memory(v, record.tensor)]
        else:
            # They have no memory to tell them by, but our hook was asked for each of them, in this order.
            empty = [v for v in given if not v.nbytes], [r for r in looked_at if not r.tensor.nbytes]
            same = [v for v, of in zip(*empty, strict=False) if of is record]
        for variable in same:
            if variable.grad_fn is not None:
                # Of an input PyTorch always says that it is output 0.
                return variable.grad_fn.name(), variable.output_nr if variable.grad_fn is node else 0
    return node.name(), 0


def _looking_at(node: Any, name: str) -> tuple[Any, list[Record]]:
    """What a node gives for one of its saved tensors or lists of them, and the records behind."""
    global _probe
    seen: list[Record] = []
    _probe = seen
    try:
        return getattr(node, name, None), seen
    except RuntimeError:  # another of its tensors was freed
        return None, []
    finally:
        _probe = None


def held_by(node: Any) -> list[Record]:
    """The records that a node holds, as far as it has saved by now."""
    names = [name for name in dir(node) if name.startswith("_saved_")]
    return [record for name in names for record in _looking_at(node, name)[1]]


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
    import torch

    node: Any = torch._C._current_autograd_node()
    if node is None:
        return False
    if node.name().startswith("RreluWithNoise"):
        return record.kind == LEAF  # the noise is saved before the operation itself fills it
    if "BatchNorm" not in node.name() or record.tensor.dim() != 1:
        return False
    # Some take no flag, since they are for training only.
    if not getattr(node, "_saved_training", getattr(node, "_saved_train", "WithUpdate" in node.name())):
        return False
    # Which of the node's saved tensors is this one? Reading its attribute runs our own hook.
    names = ("_saved_running_mean", "_saved_running_var")
    return any(each is record for name in names for each in _looking_at(node, name)[1])
