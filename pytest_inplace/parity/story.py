"""The story that a placed program is told: every tensor is on the CPU and as precise as it was written.

The user's code is told so, torch's own code the truth. Tensors from outside (NumPy, files, module level)
are adopted when they are first seen.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from pytest_inplace.engine import values
from pytest_inplace.engine.quiet import quiet
from pytest_inplace.parity import drawing
from pytest_inplace.reports import call_sites

if TYPE_CHECKING:
    import torch

    from pytest_inplace.parity.placement import Placement


_SHARING = ("from_numpy", "as_tensor", "asarray", "frombuffer", "from_dlpack")


class Story:
    """What a function mode does for a placement."""

    def __init__(self, placement: Placement) -> None:
        import torch

        self._placement = placement
        self.obstacles: list[tuple[str, Any]] = []
        self._staying: dict[int, weakref.ref[torch.Tensor]] = {}
        self._links: list[tuple[Any, bytes, torch.Tensor, int, Any]] = []
        self._moves = placement.moves
        self._tensor, self._tensors = torch.Tensor, values.plain_types()
        self._tellers = _tellers()
        self.names_device = False
        self._narrow = _narrow_dtypes() if placement.double else frozenset()

    def stays(self, tensor: torch.Tensor) -> bool:
        """Whether ``tensor`` has to stay on the CPU, as the batch sizes of a packed sequence."""
        known = self._staying.get(id(tensor))
        return known is not None and known() is tensor

    def function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One call of torch's Python interface, above autograd."""
        if self._placement.pinned.traffic is not None:
            self._placement.pinned.traffic.asked(func, args)
        teller = self._tellers.get(func)
        if teller is not None:
            answer = teller(self, args, kwargs)
            if answer is not NotImplemented:
                return answer
        if kwargs and "device" in kwargs and self._placement.moves:
            kwargs = {**kwargs, "device": self._here(kwargs["device"])}
        if self._foreign(args) or (kwargs and self._foreign(tuple(kwargs.values()))):
            self._adopt_all(args, getattr(func, "__name__", ""))
            self._adopt_all(tuple(kwargs.values()), getattr(func, "__name__", ""))
        result = func(*args, **kwargs)
        # What shares memory with an array is moved when it is used: until then it may be written there.
        if self._foreign((result,)) and getattr(func, "__name__", "") not in _SHARING:
            self._adopt_all((result,), "")
        if self._placement.observer is not None:
            self._placement.observer.made(result)
        return result

    # -- adoption -------------------------------------------------------------------------------------

    def _foreign(self, found: Sequence[Any]) -> bool:
        """Whether a tensor is among these that is not where (or as precise as) it is to be."""
        for value in found:
            kind = type(value)
            if kind in self._tensors or isinstance(value, self._tensor):
                if (value.is_cpu or not self._moves) and self._is_foreign(value):
                    return True
            elif (kind is list or kind is tuple) and value and self._foreign(value):
                return True
        return False

    def _is_foreign(self, tensor: torch.Tensor) -> bool:
        if self._moves:
            return tensor.is_cpu and not self.stays(tensor)
        if self._placement.double:
            return tensor.dtype in self._narrow
        return True

    def _adopt_all(self, found: tuple[Any, ...], name: str) -> None:
        import torch

        for value in found:
            if isinstance(value, torch.Tensor):
                if self._is_foreign(value) and not _is_wrapper(value):
                    self._adopt(value)
            elif isinstance(value, list | tuple):
                self._adopt_all(tuple(value), name)

    def moved(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> bool:
        """Whether this run is on a device; what the call is given is there then."""
        if self._moves:
            self._adopt_all((*args, *kwargs.values()), "")
        return self._moves

    def _adopt(self, tensor: torch.Tensor) -> None:
        if not self._placement.moves and not self._placement.double:
            self._placement.adoption.snapshot(tensor)
            return
        where = call_sites.capture(sys._getframe(3))
        why = self._placement.adoption.adopt(tensor, where)
        if why is not None:
            self.obstacle(why)

    def obstacle(self, reason: str, where: Any = None) -> None:
        """Note why the program may not be the same here."""
        where = where or call_sites.capture(sys._getframe(1))
        if all(known != reason for known, _ in self.obstacles):
            self.obstacles.append((reason, where))

    @property
    def shares_memory(self) -> bool:
        """Whether the program has arrays that share memory with tensors on the CPU."""
        return bool(self._links)

    def shared_memory_written(self) -> None:
        """At the end: note writes to an array or a tensor that share memory on the CPU."""
        for where in self._placement.adoption.written_elsewhere():
            self.obstacle("a NumPy array and a tensor share memory there, here they are copies", where)
        for array, before, tensor, version, where in self._links:
            if array.tobytes() != before or tensor._version != version:
                self.obstacle("a NumPy array and a tensor share memory there, here they are copies", where)

    def _here(self, device: Any) -> Any:
        """The device that is meant where the user says "cpu"."""
        import torch

        if isinstance(device, torch.device | str):
            kind = torch.device(device).type
            if kind == "cpu":
                return self._placement.device
            if kind == self._placement.device.type and not self.names_device:
                self.names_device = _user_calls()
        return device

    # -- what is told ---------------------------------------------------------------------------------

    def device(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        import torch

        if self._placement.moves and _user_asks() and not args[0].is_meta:
            return torch.device("cpu")
        return NotImplemented

    def dtype(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        import torch

        if self._placement.double and _user_asks():
            with torch._C.DisableTorchFunction():
                real = args[0].dtype
            return {torch.float64: torch.float32, torch.complex128: torch.complex64}.get(real, real)
        return NotImplemented

    def is_cpu(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return True if self._placement.moves and _user_asks() else NotImplemented

    def is_elsewhere(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return False if self._placement.moves and _user_asks() else NotImplemented

    def get_device(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return -1 if self._placement.moves and _user_asks() else NotImplemented

    def cpu(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return args[0] if self._placement.moves and not self._foreign(args) else NotImplemented

    def to(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        import torch

        if self._placement.double:
            narrow = [a for a in (*args[1:], *kwargs.values()) if a in self._narrow]
            if narrow and args[0].dtype == torch.float64 and not kwargs.get("copy"):
                return args[0]
            return NotImplemented
        if not self._placement.moves:
            return NotImplemented
        self._adopt_all(args, "to")
        if self._placement.pinned.has(args[0]) and (kwargs.get("non_blocking") or True in args[2:]):
            kwargs = {**kwargs, "copy": True}  # it is to leave the host
        kwargs = {k: self._here(v) if k == "device" else v for k, v in kwargs.items()}
        first = self._here(args[1]) if len(args) > 1 else None
        return args[0].to(*([first, *args[2:]] if len(args) > 1 else []), **kwargs)

    def float(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        import torch

        if self._placement.double and args[0].dtype == torch.float64:
            return args[0]
        return NotImplemented

    def pin_memory(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self._placement.moves:
            return NotImplemented
        self._adopt_all(args, "")
        if self._placement.pinned.has(args[0]):
            return args[0]
        copy = args[0].clone()
        self._placement.pinned.pin(copy)
        return copy

    def is_pinned(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return self._placement.pinned.has(args[0]) if self._placement.moves else NotImplemented

    def elsewhere(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.names_device = self.names_device or (self._placement.moves and _user_calls())
        return NotImplemented

    def numpy(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A copy, in which writes do not come back; whether that matters is seen at the end."""
        import torch

        if not self._placement.moves and not self._placement.double:
            return NotImplemented
        self._adopt_all(args, "numpy")
        if args[0].requires_grad and not kwargs.get("force"):
            return NotImplemented  # for torch's own error
        with quiet():
            host = args[0].detach().to("cpu")
            if self._placement.double:
                host = host.to({torch.float64: torch.float32}.get(host.dtype, host.dtype), copy=True)
            array = host.resolve_conj().resolve_neg().numpy()
        where = call_sites.capture(sys._getframe(2))
        self._links.append((array, array.tobytes(), args[0], args[0]._version, where))
        return array

    def array(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        found = self.numpy(args[:1], {})
        if found is NotImplemented:
            return found
        dtype = args[1] if len(args) > 1 else kwargs.get("dtype")
        return found if dtype is None else found.astype(dtype, copy=False)

    def text(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        import torch

        if not self._placement.moves or self._foreign(args[:1]):
            return NotImplemented
        with quiet():
            host = args[0].detach().to("cpu").requires_grad_(args[0].requires_grad)
            show: Any = torch.Tensor.__repr__
            return show(host, **kwargs)

    def pack(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Packed sequences want their lengths, and give their batch sizes, on the CPU."""
        import torch

        if not self._placement.moves:
            return NotImplemented
        self._adopt_all(args[:1], "")
        lengths = args[1]
        if not lengths.is_cpu:
            with quiet():
                lengths = lengths.to("cpu")
        result = torch._C._VariableFunctions._pack_padded_sequence(args[0], lengths, *args[2:], **kwargs)
        for tensor in (result[1],):
            self._staying[id(tensor)] = weakref.ref(tensor)
        return result

    def pad(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        import torch

        if not self._placement.moves:
            return NotImplemented
        result = torch._C._VariableFunctions._pad_packed_sequence(*args, **kwargs)
        self._staying[id(result[1])] = weakref.ref(result[1])
        return result


def _user_asks() -> bool:
    """Whether the innermost frame outside this plugin is the user's."""
    try:
        frame = sys._getframe(4)
    except ValueError:  # in a thread of the backward pass
        return False
    return not call_sites.is_library(frame.f_code)


def _user_calls() -> bool:
    """Whether it is the user's code that made a call which we answer, at whatever depth."""
    frame: Any = sys._getframe(1)
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_HERE):
        frame = frame.f_back
    return frame is not None and not call_sites.is_library(frame.f_code)


_HERE = __name__.rpartition(".")[0]


def _is_wrapper(tensor: torch.Tensor) -> bool:
    import torch

    return bool(torch._C._functorch.is_functorch_wrapped_tensor(tensor))


@functools.cache
def _narrow_dtypes() -> frozenset[Any]:
    import torch

    return frozenset({torch.float32, torch.float16, torch.bfloat16, torch.complex64})


@functools.cache
def _tellers() -> dict[Any, Any]:
    """What is answered otherwise than by torch. Looked up by equality: getters are new objects each time."""
    import torch

    tensor: Any = torch.Tensor
    functions: Any = torch._C._VariableFunctions
    return {
        tensor.device.__get__: Story.device,
        tensor.dtype.__get__: Story.dtype,
        tensor.is_cpu.__get__: Story.is_cpu,
        tensor.is_cuda.__get__: Story.is_elsewhere,
        tensor.get_device: Story.get_device,
        tensor.cpu: Story.cpu,
        tensor.to: Story.to,
        tensor.float: Story.float,
        tensor.half: Story.float,
        tensor.bfloat16: Story.float,
        tensor.pin_memory: Story.pin_memory,
        tensor.is_pinned: Story.is_pinned,
        tensor.cuda: Story.elsewhere,
        tensor.numpy: Story.numpy,
        tensor.__array__: Story.array,
        tensor.__repr__: Story.text,
        **{getattr(functions, n): drawing.recurrent(n) for n in ("lstm", "gru", "rnn_tanh", "rnn_relu")},
        torch.nn.functional.scaled_dot_product_attention: drawing.attention,
        torch.nn.functional.multi_head_attention_forward: drawing.heads,
        functions._pack_padded_sequence: Story.pack,
        functions._pad_packed_sequence: Story.pad,
    }
