"""Saved-tensor hooks of others inside a test: they apply instead of ours, so ours go along with them.

What such hooks keep is theirs: an alias is watched, a copy of their own is safe, a lossy form is judged by
what was kept. A checkpoint keeps nothing but recomputes; there the recomputed values are compared.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytest_inplace.engine import values
from pytest_inplace.engine.held import Held
from pytest_inplace.engine.ledger import Ledger, Record, Suspect
from pytest_inplace.engine.reach import tensors_in
from pytest_inplace.engine.releases import top_of_hooks
from pytest_inplace.engine.saved import is_ours
from pytest_inplace.reports import call_sites

if TYPE_CHECKING:
    import torch


class Parked:
    """What autograd holds for a tensor saved under a user's hooks: their packed value, and what we noted."""

    __slots__ = (
        "__weakref__", "_early", "address", "digest", "dtype", "held", "ledger",
        "ordinal", "packed", "recomputed", "region", "shape", "used", "version", "where",
    )  # fmt: skip

    def __init__(
        self, packed: Any, tensor: torch.Tensor, digest: int | None, ledger: Ledger, recomputed: bool
    ) -> None:
        self.packed = packed
        self._early: list[torch.Tensor] = []
        self.digest = digest
        self.ledger = ledger
        self.recomputed = recomputed
        self.region: weakref.WeakSet[Parked] | None = None
        """All of its recomputation, where that has contexts of the user's, which may let it run once only."""
        self.where = call_sites.capture(sys._getframe(2))
        self.shape = tuple(tensor.shape)
        self.dtype = tensor.dtype
        self.version = tensor._version
        self.address = _address(tensor)
        lane = ledger.lane
        self.ordinal = lane.saves
        lane.saves += 1
        self.held = None if recomputed else _kept(packed, ledger, self.where)
        self.used = self.held is None
        ledger.kept.add(self)

    def unpack_early(self, unpack: Callable[[Any], torch.Tensor]) -> torch.Tensor:
        """What the hooks will give to the backward pass that is about to run, for a trial of it.

        Hooks that keep out of our sight may give a thing away only once, so the real backward pass gets it
        from here.
        """
        if (self.recomputed and self.region is None) or self.held is not None:
            return unpack(self.packed)
        for each in (self, *(self.region or ())):
            if not each._early:
                each._early.append(unpack(each.packed))
        return self._early[0]

    def unpack(self, unpack: Callable[[Any], torch.Tensor]) -> torch.Tensor:
        """What the hooks give to the backward pass."""
        return self._early.pop() if self._early else unpack(self.packed)

    def __del__(self) -> None:
        if not self.used and not self.ledger.closed and sys and not sys.is_finalizing():
            self.dropped()

    def dropped(self) -> None:
        """No backward pass asked for it: a latent suspect if what the hooks kept has changed."""
        with self.ledger.guarding("a tensor saved under other hooks"):
            written = None if self.held is None else self.held.written_result()
            if written is None:
                return
            self.used = True
            self.ledger.unused(self.suspect("hooks", None, written[1]))

    def suspect(self, kind: str, op: str | None, tensor: Any) -> Suspect:
        """The facts about it, without its values."""
        return Suspect(
            ordinal=None,
            where=self.where,
            used=None,
            op=op,
            leaf=False,
            shape=self.shape,
            dtype=values.dtype_name(tensor),
            device=str(tensor.device),
            version_saved=self.version,
            version_now=self.version,
            kind=kind,
            key=self.key,
        )

    @property
    def key(self) -> tuple[str, int]:
        return ("parked", self.ordinal)


def _address(tensor: torch.Tensor) -> int:
    try:
        return tensor.data_ptr()
    except RuntimeError:
        return 0


def _kept(packed: Any, ledger: Ledger, where: Any) -> Held | None:
    found = tensors_in(packed, "packed")
    return Held("hooks", "saved_tensors_hooks", ledger, where, found) if found else None


def patches(
    active_ledger: Callable[[], Ledger | None], active_lens: Callable[[], Any]
) -> list[tuple[Any, str, Any]]:
    """What to replace, by what: ``(owner, attribute, replacement)``."""
    import torch
    from torch.autograd.graph import saved_tensors_hooks

    original = saved_tensors_hooks.__enter__

    @functools.wraps(original)
    def enter(self: Any) -> Any:
        ledger = active_ledger()
        name = type(self).__name__
        if ledger is None or name == "_recomputation_hook" or torch.compiler.is_compiling():
            return original(self)
        lens = active_lens()
        region: weakref.WeakSet[Parked] | None = None
        if name == "_checkpoint_hook" and lens is not None:
            given = _checkpointed(sys._getframe(1))
            if getattr(given.pop("context_fn", None), "__name__", "") != "noop_context_fn":
                region = weakref.WeakSet()
            lens.outside.checkpoint_begins(given)
        pack, unpack = _accompanying(
            self.pack_hook, self.unpack_hook, name == "_checkpoint_hook", region, active_ledger, active_lens
        )
        torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)
        return None

    saved_tensor: Any = torch._C._autograd.SavedTensor
    register = saved_tensor.register_hooks

    @functools.wraps(register)
    def register_hooks(self: Any, pack_hook: Any, unpack_hook: Any) -> Any:
        """``grad_fn._raw_saved_x.register_hooks``: PyTorch takes one pair only, so ours gives way."""
        record = getattr(self, "data", None)
        if not isinstance(record, Record) or record.hooks is not None:
            return register(self, pack_hook, unpack_hook)
        record.ledger.coverage.not_checked("a saved tensor on which the test registered hooks")
        lens = active_lens()
        if lens is not None:
            lens.forget(record)
        with torch.no_grad():  # and detached, as autograd calls it
            record.give_to(pack_hook(record.tensor.detach()), unpack_hook)
        return None

    return [
        (saved_tensors_hooks, "__enter__", enter),
        (saved_tensor, "register_hooks", register_hooks),
        *_saving_arguments(active_ledger),
    ]


def _saving_arguments(active_ledger: Callable[[], Ledger | None]) -> list[tuple[Any, str, Any]]:
    """A checkpoint saves its arguments; some of them must be saved without hooks.

    A view made under ``no_grad`` requires grad by its base only. With hooks, whosever, it comes
    back as a leaf that does so itself, so the recomputation saves more than the forward pass had.
    """
    import torch

    frame = getattr(sys.modules.get("torch.utils.checkpoint"), "_CheckpointFrame", None)
    original = getattr(frame, "save_inputs", None)
    if original is None:
        return []

    @functools.wraps(original)
    def save_inputs(self: Any, *args: Any) -> Any:
        ledger, top = active_ledger(), top_of_hooks()
        if ledger is None or top is None or not is_ours(top) or not any(map(_requires_by_base, args)):
            return original(self, *args)
        ledger.coverage.not_checked("the arguments of a checkpoint")
        torch._C._autograd._pop_saved_tensors_default_hooks()
        try:
            return original(self, *args)
        finally:
            torch._C._autograd._push_saved_tensors_default_hooks(*top)

    return [(frame, "save_inputs", save_inputs)]


def _requires_by_base(value: Any) -> bool:
    if type(value) not in values.plain_types() or value._base is None or not value.requires_grad:
        return False
    try:
        return value.grad_fn is None
    except RuntimeError:  # its base was written since
        return True


def _checkpointed(frame: Any) -> dict[str, Any]:
    """The function that ``torch.utils.checkpoint`` is about to run and its arguments, from its frame."""
    # With "_impl" at its end from torch 2.14 on.
    name = "_checkpoint_without_reentrant_generator"
    while frame is not None and not frame.f_code.co_name.startswith(name):
        frame = frame.f_back
    if frame is None:
        return {}
    wanted = ("fn", "args", "kwargs", "preserve_rng_state", "context_fn")
    return {name: frame.f_locals[name] for name in wanted if name in frame.f_locals}


def _accompanying(
    user_pack: Any, user_unpack: Any, recomputed: bool, region: weakref.WeakSet[Parked] | None,
    active_ledger: Any, active_lens: Any,
) -> tuple[Any, Any]:  # fmt: skip
    """The user's pair of hooks with our checks beside them."""
    import torch

    def pack(tensor: torch.Tensor) -> Any:
        __tracebackhide__ = True
        ledger = active_ledger()
        if ledger is None or type(tensor) not in values.plain_types():
            return _Unwatched(user_pack(tensor))
        digest = None
        with ledger.guarding("a tensor saved under other hooks"), torch._C.DisableTorchFunction():
            digest = values.digest(tensor)
        packed = user_pack(tensor)
        with ledger.guarding("a tensor saved under other hooks"), torch._C.DisableTorchFunction():
            parked = Parked(packed, tensor, digest, ledger, recomputed)
            lens = active_lens()
            if region is not None:
                parked.region = region
                region.add(parked)
            if lens is not None:
                lens.outside.parked(parked, tensor)
            return parked
        return _Unwatched(packed)

    def unpack(parked: Any) -> torch.Tensor:
        __tracebackhide__ = True
        if isinstance(parked, _Unwatched):
            return user_unpack(parked.packed)  # type: ignore[no-any-return]
        lens = active_lens()
        if lens is not None and lens.on_trial:
            return lens.outside.unpark_on_trial(parked, user_unpack)  # type: ignore[no-any-return]
        parked.used = True
        ledger = active_ledger()
        changed: list[Any] = []
        if parked.held is not None:
            with parked.ledger.guarding("a tensor saved under other hooks"):
                changed = parked.held.changed()
        tensor = parked.unpack(user_unpack)
        if ledger is parked.ledger:
            with ledger.guarding("a tensor saved under other hooks"):
                _compare(ledger, lens, parked, changed, tensor)
        return tensor  # type: ignore[no-any-return]

    return pack, unpack


class _Unwatched:
    __slots__ = ("packed",)

    def __init__(self, packed: Any) -> None:
        self.packed = packed


def _compare(ledger: Ledger, lens: Any, parked: Parked, changed: list[Any], tensor: Any) -> None:
    import torch

    if type(tensor) not in values.plain_types():
        return
    with torch._C.DisableTorchFunction():
        if changed:
            kind = "hooks"
        elif (
            parked.digest is None
            or tuple(tensor.shape) != parked.shape
            or not values.rewritten(tensor, parked.digest)
        ):
            return
        elif parked.recomputed:
            kind = "recompute"
        elif parked.held is None and parked.address and _address(tensor) == parked.address:
            kind = "hooks"  # kept out of our sight, but the same memory came back with other values
        else:
            return
        node = torch._C._current_autograd_node()
        suspect = parked.suspect(kind, node.name() if node is not None else None, tensor)
        suspect.used = call_sites.capture(sys._getframe(2))
        ledger.suspects.setdefault(parked.key, suspect)
        if lens is not None:
            lens.outside.unparked(parked, tensor)
