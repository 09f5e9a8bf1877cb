"""A program that names no device, run on one, or in double precision, with the random numbers of the CPU.

Below autograd, a dispatch mode sends what makes tensors to the device, and runs on the CPU what draws
random numbers. Above it, a function mode moves tensors that were born on the CPU and keeps up the story
that nothing moved (:mod:`pytest_inplace.parity.story`).
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any, Protocol

from pytest_inplace.engine.quiet import quiet
from pytest_inplace.parity import operators
from pytest_inplace.parity.adoption import Adoption
from pytest_inplace.parity.hazards import Hazards
from pytest_inplace.parity.modes import mode_classes
from pytest_inplace.parity.patches import patched
from pytest_inplace.parity.pinned import Pinned
from pytest_inplace.parity.story import Story

if TYPE_CHECKING:
    import torch


class Observer(Protocol):
    """Sees each operator of a placed program."""

    def __call__(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], compute: Any) -> Any:
        """Let ``compute`` run an operator; the result is what the program goes on with."""

    def made(self, result: Any) -> None:
        """``result`` is what a function of torch's Python interface returned to the program."""


class Placement:
    """Everything inside ``with`` runs on ``device``, or with ``double`` on the CPU in double precision.

    With ``noise``, every result in double precision is off by what rounding would
    do. On the CPU in plain precision it only sees to it that the run leaves no trace in tensors that were
    there before.

    Raises:
        RuntimeError: if torch has no such device, on entering.
    """

    def __init__(
        self, device: str, *, double: bool = False, noise: bool = False, observer: Observer | None = None
    ) -> None:
        import torch

        self.device = torch.device(device)
        self.double = double
        self.moves = self.device.type != "cpu"
        self.adoption = Adoption(self.device, torch.float64 if double else None)
        self.story = Story(self)
        self.hazards = Hazards()
        self.pinned = Pinned(self.hazards.tell)
        self.observer = observer
        self._noise = torch.Generator().manual_seed(0) if noise else None
        # By id, for an operator takes longer to hash than to look up; ours are kept, so no id is used again.
        self._kinds: dict[int, tuple[Any, str]] = {}
        self._stack = contextlib.ExitStack()
        self._precision = torch.float32
        self._born: dict[int, tuple[Any, torch.dtype]] = {}

    def __enter__(self) -> Placement:
        dispatch, function = mode_classes()
        self._stack.callback(self.adoption.put_back)
        self._stack.enter_context(patched(self))
        self._stack.callback(self.pinned.stop)
        self._stack.enter_context(dispatch(self.dispatch))
        self._stack.enter_context(function(self.story.function))
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    @property
    def obstacles(self) -> list[tuple[str, Any]]:
        """Why the program is not the same there: reasons, and where in the user's code."""
        return self.story.obstacles

    # -- operators ----------------------------------------------------------------------------------

    def dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """One operator, below autograd."""
        known = self._kinds.get(id(func))
        if known is None:
            known = self._kinds[id(func)] = (func, self._kind(func))
        kind = known[1]
        if kind == "only compute" and self.pinned.traffic is None:
            return self._plain(func, args, kwargs)
        if kind == "random":
            return self._random(func, args, kwargs)
        if kind == "make":
            return self._make(func, args, kwargs)
        if kind == "lift":
            lifted = func(*args, **kwargs)
            # Memory that torch cannot resize is another library's: NumPy's, say.
            return self._arrived(lifted) if lifted.untyped_storage().resizable() else lifted
        if self.double:
            args, kwargs = operators.widened(args), operators.widened(kwargs)
            if self._noise is not None and not operators.is_view(func):
                return self._rounded(func(*args, **kwargs))
        if not self.double:
            self.hazards.look(func, args, kwargs)
        if self.observer is not None:
            return self.observer(func, args, kwargs, self._plain)
        if self.pinned.traffic is None:
            return self._plain(func, args, kwargs)
        result = self._plain(func, args, kwargs)
        self.pinned.traffic.ran(func, args, kwargs, result)
        return result

    def _kind(self, func: Any) -> str:
        kind = operators.kind(func)
        if kind != "compute" or self.double or self.observer is not None or self.hazards.concern(func):
            return kind
        return "only compute"

    def _plain(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if not self.moves:
            return func(*args, **kwargs)
        try:
            return func(*args, **kwargs)
        except RuntimeError:
            # No function mode is active in backward: constants from the CPU are first met here.
            strangers = [
                t for t in operators.tensors_in((args, kwargs)) if t.device.type == "cpu" and t.dim()
            ]
            if not strangers or any(self.adoption.adopt(t) for t in strangers if not self.story.stays(t)):
                raise
            return func(*args, **kwargs)

    def _make(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """An operator that makes a tensor from none."""
        device = kwargs.get("device")
        if device is None or device.type == "cpu":
            kwargs = {**kwargs, "device": self.device}
        pins = self.moves and kwargs.get("pin_memory")
        if pins:
            kwargs["pin_memory"] = False
        made = func(*args, **kwargs)
        if pins:
            self.pinned.pin(made)
        if self.double:
            return self._widen(made)
        if not self.moves:
            self.adoption.born(made)
        return made

    def _arrived(self, tensor: Any) -> Any:
        if self.double:
            return self._widen(tensor)
        if self.moves:
            return tensor.to(self.device)
        self.adoption.born(tensor)
        return tensor

    def _random(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Draw on the CPU, in the precision in which the CPU drew, and bring the result here."""
        if (not self.moves and not self.double) or any(t.is_meta for t in operators.tensors_in(args)):
            return func(*args, **kwargs)
        back: dict[int, torch.Tensor] = {}

        def host(value: Any) -> Any:
            import torch

            if isinstance(value, torch.Tensor):
                copy = self._narrow(value) if self.double else value.to("cpu")
                back[id(copy)] = value
                return copy
            if isinstance(value, list | tuple):
                return type(value)(host(v) for v in value)
            return value

        hosted = {k: host(v) for k, v in kwargs.items()}
        if "device" in hosted:
            hosted["device"] = None
        if hosted.get("pin_memory"):
            hosted["pin_memory"] = False
        given = host(args)
        result = func(*given, **hosted)
        for copy in operators.arguments_written(func, given, hosted):
            original = back[id(copy)]
            if original.shape != copy.shape:
                original.resize_(copy.shape)
            original.copy_(copy)

        def here(value: Any) -> Any:
            import torch

            if isinstance(value, torch.Tensor):
                return back.get(id(value)) if id(value) in back else self._arrived(value)
            if isinstance(value, list | tuple):
                return type(value)(here(v) for v in value)
            return value

        return here(result)

    # -- double precision ----------------------------------------------------------------------------

    def _widen(self, made: torch.Tensor) -> Any:
        import torch

        wide = operators.wide_dtypes().get(made.dtype)
        if wide is None:
            return made
        widened = self._rounded(made.to(wide))
        if made.dtype != torch.float32:
            self._precision = max(self._precision, made.dtype, key=lambda d: torch.finfo(d).eps)
            storage = widened.untyped_storage()
            self._born[storage._cdata] = (storage, made.dtype)
        return widened

    def _rounded(self, result: Any) -> Any:
        """As if each element had been rounded, to one side or the other, where noise is asked for."""
        import torch

        if self._noise is None:
            return result
        with quiet():
            for tensor in operators.tensors_in(result):
                if tensor.dtype == torch.float64:
                    jiggle = torch.empty_like(tensor).uniform_(-1, 1, generator=self._noise)
                    tensor.mul_(1 + torch.finfo(self._precision).eps * jiggle)
        return result

    def _narrow(self, tensor: torch.Tensor) -> torch.Tensor:
        """A copy in the precision that the tensor would have without us."""
        import torch

        if tensor.dtype != torch.float64:
            return tensor.clone()
        born = self._born.get(tensor.untyped_storage()._cdata)
        return tensor.to(born[1] if born is not None else torch.float32)
