"""Copies that nobody waited for, and work on several streams: what is used before it is done.

On the CPU, where each operation is done when it returns, such a program is right by luck. Whatever may
be a synchronisation counts as one, and orders more than it has to: no alarm is false.
"""

from __future__ import annotations

import contextlib
import functools
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_inplace.parity import operators
from pytest_inplace.reports import call_sites

if TYPE_CHECKING:
    import torch

_COPIES = ("aten::copy_", "aten::_to_copy")
_KEPT = 4096

Tell = Callable[[str, Any], None]
Stream = tuple[int, int]


@dataclass
class _Flight:
    """A copy between the host and the device that may still be under way."""

    memory: Any
    up: bool
    stream: Stream
    time: int
    where: Any


@dataclass
class _Used:
    """When each stream read and wrote some memory last, and where in the user's code."""

    memory: Any
    reads: dict[Stream, tuple[int, Any]]
    writes: dict[Stream, tuple[int, Any]]


class Traffic:
    """Follows the operators of a program, in the order in which the host starts them."""

    def __init__(self, tell: Tell, on_host: Callable[[torch.Tensor], bool], streams: bool) -> None:
        """``on_host``: whether a tensor is in the host's memory; ``streams``: whether to tell them apart."""
        self._tell = tell
        self.on_host = on_host
        self._streams = streams
        self._clock = 0
        self._flights: dict[int, _Flight] = {}
        self._used: dict[int, _Used] = {}
        self._all = 0
        self._done: dict[Stream, int] = {}
        self._joined: dict[Stream, int] = {}
        self._recorded: dict[int, int] = {}

    # -- operators ------------------------------------------------------------------------------------------

    def ran(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], result: Any) -> None:
        """An operator was started."""
        import torch

        if operators.is_view(func) or operators.is_unfilled(func):
            return
        self._clock += 1
        given, results = operators.tensors_in((args, kwargs)), operators.tensors_in(result)
        if _only_asks(func):
            given = []
        written = operators.arguments_written(func, args, kwargs) if given else []
        if func._schema.name in _COPIES and given:
            source, target = given[-1], (written or results)[0]
            strided = all(t.layout is torch.strided for t in (source, target))
            if strided and self.on_host(source) != self.on_host(target):
                self._copied(source, target, bool(_non_blocking(func, args, kwargs)))
                return
        there = [t for t in (*given, *results) if not self.on_host(t)]
        if there and _waits(func):
            self.waited(_current(there[0]))
        if self._flights:
            for tensor in given:
                self.host_uses(tensor, _name(func), any(tensor is w for w in written))
        if there and self._streams:
            fresh = [t for t in results if not any(t is g for g in given)]
            self._on_stream(func, given, [*written, *fresh])

    def host_uses(self, tensor: torch.Tensor, name: str, writes: bool) -> None:
        """The host reads a tensor, or writes to it."""
        flight = self._flights.get(_key(tensor))
        if flight is None or flight.memory.expired() or not self.on_host(tensor):
            return
        if flight.up and not writes:
            return
        if flight.up:
            text = f"{name} overwrites host memory that a non_blocking copy{_at(flight.where)} may still read"
        else:
            text = f"{name} uses host memory that a non_blocking copy{_at(flight.where)} may still be writing"
        self._tell(text, call_sites.capture(sys._getframe(1)))
        del self._flights[_key(tensor)]

    def _copied(self, source: torch.Tensor, target: torch.Tensor, non_blocking: bool) -> None:
        up = self.on_host(source)
        host, there = (source, target) if up else (target, source)
        if not non_blocking:
            self.waited(_current(there))
            return
        where = call_sites.capture(sys._getframe(2))
        self._flights[_key(host)] = _Flight(_weak(host), up, _current(there), self._clock, where)
        if self._streams:
            self._on_stream(None, [] if up else [source], [target] if up else [])

    def _on_stream(self, func: Any, given: list[torch.Tensor], written: list[torch.Tensor]) -> None:
        import torch

        if torch._C._current_autograd_node() is not None:
            return  # autograd keeps the streams of a backward pass in order
        where = call_sites.capture(sys._getframe(2))
        if len(self._used) > _KEPT:
            self._used = {k: u for k, u in self._used.items() if not u.memory.expired()}
        for tensor in (*given, *written):
            if self.on_host(tensor) or tensor.layout is not torch.strided:
                continue
            stream, writes = _current(tensor), any(tensor is w for w in written)
            used = self._used.get(_key(tensor))
            if used is None or used.memory.expired():
                used = self._used[_key(tensor)] = _Used(_weak(tensor), {}, {})
            for others, verb in ((used.writes, "wrote"), (used.reads if writes else {}, "reads")):
                for other, (time, site) in others.items():
                    if other != stream and time > self._ordered(other, stream):
                        what = f"{_name(func)} {'writes' if writes else 'reads'} on one stream"
                        self._tell(f"{what} what another{_at(site)} {verb}, and neither waits", where)
            (used.writes if writes else used.reads)[stream] = (self._clock, where)

    def _ordered(self, earlier: Stream, later: Stream) -> int:
        """Up to when the work of one stream is done before what another one does now."""
        return max(self._all, self._done.get(earlier, 0), self._joined.get(later, 0))

    def asked(self, func: Any, args: tuple[Any, ...]) -> None:
        """A function that hands content to Python without an operator that could be seen."""
        import torch

        if getattr(func, "__name__", "") not in _READING or not args or not isinstance(args[0], torch.Tensor):
            return
        if self.on_host(args[0]):
            self.host_uses(args[0], func.__name__, False)
        else:
            self.waited(_current(args[0]))

    # -- synchronisation ------------------------------------------------------------------------------------

    def waited(self, stream: Stream | None = None) -> None:
        """The host waited for a stream, or for all."""
        if stream is None:
            self._all = self._clock
            self._flights.clear()
        else:
            self._done[stream] = self._clock
            self._flights = {k: f for k, f in self._flights.items() if f.stream != stream}

    def called(self, name: str, owner: Any) -> None:
        """Something was called that may order the work of a stream, an event or all of a device."""
        stream = getattr(owner, "stream_id", None)
        if stream is not None:
            key = (owner.device_index, stream)
            if name.startswith("wait"):
                self._joined[key] = self._clock
            elif name in ("synchronize", "query"):
                self.waited(key)
        elif "Event" in type(owner).__name__:
            if name == "record":
                self._recorded[id(owner)] = self._clock
                return
            time = self._recorded.get(id(owner), self._clock)
            self._all = max(self._all, time)
            if name != "wait":
                self._flights = {k: f for k, f in self._flights.items() if f.time > time}
        elif "ynchronize" in name or type(owner).__module__.startswith("torch"):
            self.waited()

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Inside, calls that order things are heard; where another profiler listens, nothing is told."""
        if sys.getprofile() is not None:
            self._tell = lambda text, where: None
            yield
            return
        sys.setprofile(self._heard)
        try:
            yield
        finally:
            sys.setprofile(None)

    def _heard(self, frame: Any, event: str, function: Any) -> None:
        if event != "c_call":
            return
        name = function.__name__
        if name in _ORDERING or "ynchronize" in name:
            owner = getattr(function, "__self__", None)
            self.called(name, None if isinstance(owner, type(sys)) else owner)


_READING = frozenset({"numpy", "tolist", "__array__", "cpu"})
_ORDERING = frozenset(
    {"synchronize", "query", "wait", "wait_stream", "wait_event", "record", "capture_end", "replay"}
)


def _only_asks(func: Any) -> bool:
    """Whether an operator takes no elements of its arguments, but their shape or where they are."""
    name = _name(func)
    return name.endswith("_like") or name.startswith("new_") or name in ("is_pinned", "record_stream")


def _non_blocking(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    return kwargs.get(
        "non_blocking", args[2] if func._schema.name == "aten::copy_" and len(args) > 2 else False
    )


def _waits(func: Any) -> bool:
    """Whether the host has to know what an operator finds before it goes on."""
    import torch

    tags = torch.Tag
    return tags.data_dependent_output in func.tags or tags.dynamic_output_shape in func.tags


def _current(tensor: torch.Tensor) -> Stream:
    """The stream that work on a tensor goes to now; torch before 2.6 does not say."""
    accelerator = _accelerator()
    if accelerator is None or tensor.device.type != accelerator.current_accelerator().type:
        return (0, 0)
    stream = accelerator.current_stream(tensor.device)
    return (stream.device_index, stream.stream_id)


@functools.cache
def _accelerator() -> Any:
    import torch

    accelerator = getattr(torch, "accelerator", None)
    return accelerator if accelerator is not None and accelerator.is_available() else None


def _key(tensor: torch.Tensor) -> int:
    try:
        return int(tensor.untyped_storage()._cdata)
    except (RuntimeError, NotImplementedError):
        return id(tensor)


def _weak(tensor: torch.Tensor) -> Any:
    from torch.multiprocessing.reductions import StorageWeakRef

    return StorageWeakRef(tensor.untyped_storage())  # type: ignore[no-untyped-call]


def _name(func: Any) -> str:
    return "a copy" if func is None else str(func._schema.name).removeprefix("aten::")


def _at(where: Any) -> str:
    site = call_sites.resolve(where)
    return f" ({os.path.basename(site.path)}:{site.line})" if site is not None else ""
