"""The content of one tensor: digest, copy, compare and describe, per layout and device.

Digests read the raw bytes of CPU memory with xxh3 and involve no torch operation, so no user's mode,
profiler or tracer can see them. Where a tensor has no bytes to read, the reason is said instead.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from xxhash import xxh3_64, xxh3_64_intdigest

from pytest_inplace.engine import pictures
from pytest_inplace.engine.quiet import quiet
from pytest_inplace.reports.findings import Change, GradientError, ValueDiff

if TYPE_CHECKING:
    import torch

SHOWN = 5
# Reading one run more costs about as much as copying so many bytes, and a copy as a few dozen runs.
_SHORT_RUN = 512
_FEW_RUNS = 64
_MAX_RUNS = 4096
_buffers: dict[int, Any] = {}
_layouts: dict[tuple[Any, ...], Layout] = {}


def dtype_name(tensor: torch.Tensor) -> str:
    """torch's name of the dtype without its prefix, such as ``float32``."""
    return str(tensor.dtype).removeprefix("torch.")


def buffer_type(nbytes: int) -> Any:
    """The ctypes array of so many bytes; kept, because making the type costs more than the read."""
    found = _buffers.get(nbytes)
    if found is None:
        if len(_buffers) > 4096:
            _buffers.clear()
        found = _buffers[nbytes] = ctypes.c_char * nbytes
    return found


def unreadable(tensor: torch.Tensor) -> str | None:
    """Why the content of ``tensor`` cannot be read as bytes of CPU memory, or ``None`` where it can."""
    import torch

    # A traceable wrapper subclass has no memory of its own; other subclasses are plain memory.
    if type(tensor) not in plain_types() and (
        hasattr(tensor, "__tensor_flatten__") or type(tensor).__name__ == "FakeTensor"
    ):
        return f"{type(tensor).__name__} subclass"
    if tensor.layout is not torch.strided:
        return f"{str(tensor.layout).removeprefix('torch.')} layout"
    if tensor.is_nested:
        return "nested tensor"
    if tensor.device.type != "cpu":
        return f"{tensor.device.type} device"
    return None


@functools.cache
def plain_types() -> frozenset[type]:
    """The tensor classes that are nothing but memory with a shape."""
    import torch

    return frozenset({torch.Tensor, torch.nn.Parameter})


def is_leaf(tensor: torch.Tensor) -> bool:
    """Whether it is a leaf of the graph, for any tensor.

    A view that was made without gradients must not be asked once its base was written with them: PyTorch
    answers with an error then.
    """
    base = tensor._base
    return (base is None or base.grad_fn is None) and node_of(tensor) is None


def node_of(tensor: torch.Tensor) -> Any:
    """The node that made the tensor, or its base where it must not be asked; ``None`` for a leaf."""
    base = tensor._base
    try:
        return tensor.grad_fn
    except RuntimeError:
        return None if base is None else base.grad_fn


def digest(tensor: torch.Tensor) -> int | None:
    """A 64-bit digest of the elements of ``tensor`` (any dtype and strides), or ``None`` if unreadable.

    Only the tensor's own elements are read: bytes between them, which belong to other views of the
    same storage, do not count. Equal content in the same layout gives equal digests.
    """
    if unreadable(tensor) is not None:
        return None
    return _strided_digest(tensor)


def _strided_digest(tensor: torch.Tensor) -> int | None:
    nbytes = tensor.nbytes
    if nbytes == 0:
        return 0
    try:
        address = tensor.data_ptr()
        storage = tensor.untyped_storage()
        enough = storage.nbytes() >= _needed(tensor)
    except (RuntimeError, NotImplementedError):  # functorch wrappers and the like have no memory
        return None
    if not enough or not address or not storage.data_ptr():
        return None  # see freed()
    lazily = _lazily(tensor) if tensor.dtype in lazy_types() else 0
    if tensor.is_contiguous():
        return xxh3_64_intdigest(buffer_type(nbytes).from_address(address)) ^ lazily
    buffer, _, others, mark = layout(tensor)
    if others is None:
        with quiet():
            copy = tensor.detach().contiguous()
        return xxh3_64_intdigest(buffer_type(nbytes).from_address(copy.data_ptr())) ^ mark ^ lazily
    return digest_runs(buffer, address, others) ^ mark ^ lazily


@functools.cache
def lazy_types() -> frozenset[torch.dtype]:
    """The types whose elements may be meant conjugated: that is noted on the tensor, not in its memory.

    Those of real numbers may be meant negated only as part of such a one, and are not asked.
    """
    import torch

    return frozenset({torch.complex32, torch.complex64, torch.complex128})


def _lazily(tensor: torch.Tensor) -> int:
    """A number that tells a tensor that is conjugated or negated lazily from one with the same bytes."""
    return (0x9E3779B97F4A7C15 if tensor.is_conj() else 0) ^ (0x5851F42D4C957F2D if tensor.is_neg() else 0)


def digest_runs(buffer: Any, address: int, others: Sequence[int]) -> int:
    """The digest of runs of memory as long as ``buffer``: one at an address, others at offsets from it."""
    from_address = buffer.from_address
    if not others:
        return xxh3_64_intdigest(from_address(address))
    hasher = xxh3_64(from_address(address))
    update = hasher.update
    for offset in others:
        update(from_address(address + offset))
    return hasher.intdigest()


def freed(tensor: torch.Tensor) -> bool:
    """Whether the memory was given back while the tensor is kept, and reading it would crash.

    Sharded training does that with parameters and reversible networks with activations, which they compute
    again before they are used: not a write.
    """
    if unreadable(tensor) is not None or tensor.nbytes == 0:
        return False
    try:
        storage = tensor.untyped_storage()
        return storage.nbytes() < _needed(tensor) or not storage.data_ptr()
    except (RuntimeError, NotImplementedError):
        return False


def rewritten(tensor: torch.Tensor, was: int | None) -> bool:
    """Whether the content is another than that of the digest ``was``; memory that was given back is not."""
    now = digest(tensor)
    return was is not None and now != was and not (now is None and freed(tensor))


def _needed(tensor: torch.Tensor) -> int:
    """How many bytes of its storage the elements of ``tensor`` reach over."""
    last = sum((d - 1) * s for d, s in zip(tensor.shape, tensor.stride(), strict=True))
    return int((tensor.storage_offset() + last + 1) * tensor.element_size())


Layout = tuple[Any, tuple[int, ...], "tuple[int, ...] | None", int]
"""The elements as runs in memory: the type of one run, the tensor's strides, where the runs after the first
begin, in bytes from that (``None``: so many that a copy is cheaper), and a number that tells this layout from
others."""


def layout(tensor: torch.Tensor) -> Layout:
    """The layout of a strided tensor; kept, because working it out costs more than the read."""
    key = (tensor.shape, tensor.stride(), tensor.nbytes)
    found = _layouts.get(key)
    if found is None:
        if len(_layouts) > 4096:
            _layouts.clear()
        found = _layouts[key] = _layout(tuple(tensor.shape), tensor.stride(), tensor.element_size())
    return found


def _layout(shape: tuple[int, ...], stride: tuple[int, ...], itemsize: int) -> Layout:
    """Dimensions are merged from the smallest stride upwards, so a transposed matrix is one run."""
    mark = xxh3_64_intdigest(repr((shape, stride)).encode())
    rest = sorted((s, d) for s, d in zip(stride, shape, strict=True) if d > 1 and s != 0)
    run = 1
    while rest and rest[0][0] == run:
        run *= rest.pop(0)[1]
    nbytes = run * itemsize
    count = math.prod(d for _, d in rest)
    if count > _MAX_RUNS or (count > _FEW_RUNS and nbytes < _SHORT_RUN):
        return None, stride, None, mark
    offsets = [0]
    for s, d in rest:
        offsets = [o + i * s * itemsize for o in offsets for i in range(d)]
    return buffer_type(nbytes), stride, tuple(sorted(offsets))[1:], mark


def snapshot(tensor: torch.Tensor) -> torch.Tensor:
    """A detached copy with the same strides, so that the same kernels give bit-equal results on it.

    Call it inside :func:`~pytest_inplace.engine.quiet.quiet`.
    """
    import torch

    if unreadable(tensor) is not None:
        return tensor.detach().clone()
    detached = tensor.detach()
    if freed(detached):
        copy = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
        copy.untyped_storage().resize_(0)
        return copy
    if detached.is_conj():  # lazy bits: copy the memory behind them, then set them again
        return snapshot(detached.conj()).conj()
    if detached.is_neg():
        return torch._neg_view(snapshot(torch._neg_view(detached)))
    shape, stride = tuple(detached.shape), detached.stride()
    if (
        detached.is_quantized
        or 0 in shape
        or any(s == 0 and d > 1 for s, d in zip(stride, shape, strict=True))
    ):
        return _expanded_snapshot(detached)
    copy = torch.empty_strided(shape, stride, dtype=detached.dtype, device=detached.device)
    return copy.copy_(detached)


def _expanded_snapshot(detached: torch.Tensor) -> torch.Tensor:
    """A copy that keeps zero strides: expanded dimensions are copied once and expanded again."""
    if detached.is_quantized or detached.numel() == 0:
        return detached.clone()
    base = detached
    for dim, (size, stride) in enumerate(zip(detached.shape, detached.stride(), strict=True)):
        if stride == 0 and size > 1:
            base = base.narrow(dim, 0, 1)
    return snapshot(base).expand(detached.shape)


def same_values(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether two tensors have the same shape, dtype and bits (NaN payloads and signed zeros included).

    Call it inside :func:`~pytest_inplace.engine.quiet.quiet`.
    """
    import torch

    if a.shape != b.shape or a.dtype != b.dtype or freed(a) != freed(b):
        return False
    if freed(a):
        return True
    if unreadable(a) is not None or unreadable(b) is not None:
        try:
            return bool(torch.equal(a, b))
        except (RuntimeError, NotImplementedError):
            return a is b or (a.layout is not torch.strided and same_values(_dense(a), _dense(b)))
    a, b = a.detach().resolve_conj().resolve_neg(), b.detach().resolve_conj().resolve_neg()
    if a.stride() != b.stride():
        a, b = a.contiguous(), b.contiguous()
    return digest(a) == digest(b)


def difference(before: torch.Tensor, after: torch.Tensor) -> ValueDiff:
    """How ``after`` differs from ``before``, both of the same shape and dtype, element by element.

    Of others, and of tensors that have no elements to look at, all count. Call it inside
    :func:`~pytest_inplace.engine.quiet.quiet`.
    """
    total = before.numel()
    if before.shape == after.shape and before.dtype == after.dtype:
        with contextlib.suppress(RuntimeError, NotImplementedError):
            return _difference(before, after, total)
    return ValueDiff(max(total, after.numel()), total, None)


def _difference(before: torch.Tensor, after: torch.Tensor, total: int) -> ValueDiff:
    import torch

    a, b = widened(before), widened(after)
    differs = (a != b) & ~((a != a) & (b != b))
    if not a.is_complex() and a.is_floating_point():
        differs |= torch.signbit(a) != torch.signbit(b)
    changed = int(differs.sum())
    if not changed:
        return ValueDiff(0, total, 0.0)
    gap = (b - a).abs().masked_fill(~differs, -1).nan_to_num(nan=math.inf, posinf=math.inf)
    count = min(SHOWN, changed)
    top = torch.topk(gap.flatten(), count).indices.tolist()
    # topk gives ties in no fixed order; by index, the report is the same every time.
    top.sort(key=lambda i: (-float(gap.flatten()[i]), i))
    finite = gap[gap.isfinite() & (gap >= 0)]
    largest = tuple(Change(_unravel(i, tuple(a.shape)), number(before, i), number(after, i)) for i in top)
    biggest = float(finite.max()) if finite.numel() == (gap >= 0).sum() else None
    return ValueDiff(changed, total, biggest, largest, pictures.heat_map(gap, tuple(a.shape)))


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """Any dtype as float64 or complex128, dense, for arithmetic about differences."""
    import torch

    plain = _dense(tensor).resolve_conj().resolve_neg()
    return plain.to(torch.complex128 if plain.is_complex() else torch.float64)


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    import torch

    plain = tensor.detach()
    if freed(plain):
        raise RuntimeError("the memory of this tensor was given back")
    if plain.is_quantized:
        plain = plain.dequantize()
    return plain if plain.layout is torch.strided else plain.to_dense()


def _unravel(flat: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    index: list[int] = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return tuple(reversed(index))


def number(tensor: torch.Tensor, flat: int) -> str:
    """The element at a row-major position, to six significant digits."""
    plain = _dense(tensor)
    value = plain.flatten()[flat].item()
    if isinstance(value, bool | int):
        return str(value)
    return f"{value:.6g}"


def gradient_error(
    name: str, right: torch.Tensor, computed: torch.Tensor, picture: bool = False
) -> GradientError | None:
    """The computed gradient of one leaf against the right one; ``None`` if they are bit-equal.

    Formulas: see :class:`~pytest_inplace.reports.findings.GradientError`. Call it inside ``quiet()``.

    Args:
        name: of the leaf.
        right: the gradient from untouched values.
        computed: the gradient as it is.
        picture: whether to add the histogram of both.
    """
    if same_values(right, computed):
        return None
    shape = tuple(right.shape)
    if right.shape != computed.shape or freed(right) or freed(computed):
        return GradientError(name, shape, None, None)
    r, g = widened(right).flatten(), widened(computed).flatten()
    gap = (g - r).abs()
    gap[((r != r) & (g != g)) | (r == g)] = 0  # NaN and infinities in the same places
    worst = gap.nan_to_num(nan=math.inf).argmax().item() if gap.numel() else 0
    max_abs, scale = float(gap.max()), float(r.abs().max())
    norms = float(r.norm() * g.norm())
    inner = (r.conj() * g).sum().real if r.is_complex() else (r * g).sum()
    return GradientError(
        name,
        shape,
        max_abs if math.isfinite(max_abs) else None,
        max_abs / scale if scale and math.isfinite(max_abs / scale) else None,
        float(inner) / norms if norms and math.isfinite(norms) else None,
        (number(right, int(worst)),),
        (number(computed, int(worst)),),
        pictures.histogram(r, g) if picture else None,
    )


def storage_key(tensor: torch.Tensor) -> int:
    """What tensors have in common that share memory."""
    try:
        return tensor.untyped_storage().data_ptr()
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def elements_key(tensor: torch.Tensor) -> tuple[Any, ...]:
    """What tensors have in common that are the same elements of memory."""
    try:
        bits = tensor.is_conj(), tensor.is_neg()
        return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype, bits)
    except (RuntimeError, NotImplementedError):
        return (id(tensor),)
