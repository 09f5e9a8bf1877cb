"""What a run computed: the roots of each backward pass, gradients, parameters after steps, named tensors."""

from __future__ import annotations

import sys
import weakref
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pytest_inplace.engine import names
from pytest_inplace.engine.quiet import quiet
from pytest_inplace.reports import call_sites

if TYPE_CHECKING:
    import torch

BUDGET = 1 << 28
"""How many bytes a recorder keeps; what comes then is counted, and compared no more."""

Key = tuple[str, int, str]
"""What kind of value, which time it was met, and its name."""

_active: list[Recorder] = []


def active_recorder() -> Recorder | None:
    """The recorder of the program that runs now, or ``None``."""
    return _active[-1] if _active else None


@dataclass(frozen=True)
class Point:
    """One recorded value: a copy on the CPU, and where in the user's code it was computed."""

    kind: str
    name: str
    time: int
    value: torch.Tensor
    where: Any

    @property
    def text(self) -> str:
        """As a report calls it."""
        if self.kind == "compare":
            return f"{self.name}, given to inplace.compare()"
        if self.kind == "root":
            return f"{self.name} of backward pass {self.time}"
        if self.kind == "gradient":
            return f"the gradient of {self.name} after backward pass {self.time}"
        return f"{self.name} after optimizer step {self.time}"


class Recorder:
    """Records a program from :meth:`start` to :meth:`stop`."""

    def __init__(self) -> None:
        self.points: dict[Key, Point] = {}
        self.left_out = 0
        self._kept = 0
        self._times: dict[str, int] = {}
        self._names: dict[int, tuple[weakref.ref[torch.Tensor], str]] = {}
        self._taken: dict[str, int] = {}
        self._engine: Any = None
        self._step_hook: Any = None

    def start(self) -> None:
        import torch
        from torch.optim.optimizer import register_optimizer_step_post_hook

        autograd: Any = torch.autograd
        self._engine = engine = autograd._engine_run_backward

        def run_backward(outputs: Any, *args: Any, **kwargs: Any) -> Any:
            frame = sys._getframe(1)
            with quiet():
                leaves = self._before_backward(outputs, frame)
            result = engine(outputs, *args, **kwargs)
            with quiet():
                self._after_backward(leaves, result if not kwargs.get("accumulate_grad") else (), frame)
            return result

        self._patched = autograd._engine_run_backward = run_backward
        self._step_hook = register_optimizer_step_post_hook(self._after_step)
        _active.append(self)

    def stop(self) -> None:
        import torch

        autograd: Any = torch.autograd
        if self not in _active:
            return
        _active.remove(self)
        self._step_hook.remove()
        if autograd._engine_run_backward is self._patched:
            autograd._engine_run_backward = self._engine
        self._engine = None

    def compare(self, name: str, tensor: torch.Tensor) -> None:
        """A value that the user wants compared."""
        with quiet():
            self._keep("compare", name, self._count(f"compare {name}"), tensor, sys._getframe(1))

    # -- what is met ------------------------------------------------------------------------------------

    def _count(self, kind: str) -> int:
        self._times[kind] = time = self._times.get(kind, 0) + 1
        return time

    def _before_backward(self, outputs: Any, frame: Any) -> list[torch.Tensor]:
        time = self._count("backward")
        roots = list(outputs)
        for i, root in enumerate(roots):
            if hasattr(root, "grad_fn"):
                self._keep("root", "the loss" if len(roots) == 1 else f"output {i}", time, root, frame)
        leaves = _leaves(roots)
        self._name(leaves, frame)
        return leaves

    def _after_backward(self, leaves: list[torch.Tensor], returned: Any, frame: Any) -> None:
        time = self._times["backward"]
        for leaf in leaves:
            if leaf.grad is not None:
                self._keep("gradient", self._name_of(leaf), time, leaf.grad, frame)
        for i, grad in enumerate(returned or ()):
            if grad is not None:
                self._keep("gradient", f"input {i}", time, grad, frame)

    def _after_step(self, optimizer: Any, args: Any, kwargs: Any) -> None:
        frame = sys._getframe(1)
        time = self._count("step")
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        with quiet():
            self._name(parameters, frame)
            for parameter in parameters:
                self._keep("parameter", self._name_of(parameter), time, parameter, frame)

    def _keep(self, kind: str, name: str, time: int, tensor: torch.Tensor, frame: Any) -> None:
        import torch

        key = (kind, time, name)
        within_transform = torch._C._functorch.is_functorch_wrapped_tensor(tensor)
        if self._kept > BUDGET or tensor.layout is not torch.strided or tensor.is_meta or within_transform:
            self.left_out += 1
            return
        value = tensor.detach().to("cpu", copy=True)
        self._kept += value.nbytes
        self.points[key] = Point(kind, name, time, value, call_sites.capture(frame))

    # -- names --------------------------------------------------------------------------------------------

    def _name(self, tensors: list[torch.Tensor], frame: Any) -> None:
        """Name those not named yet: as the user calls them, else by shape and order."""
        unknown = [t for t in tensors if self._known(t) is None]
        if not unknown:
            return
        visible = names.leaf_names(frame)
        for tensor in unknown:
            name = visible.get(id(tensor)) or f"a leaf {list(tensor.shape)}"
            taken = self._taken[name] = self._taken.get(name, 0) + 1
            self._names[id(tensor)] = (weakref.ref(tensor), name if taken == 1 else f"{name} ({taken})")

    def _known(self, tensor: torch.Tensor) -> str | None:
        found = self._names.get(id(tensor))
        return found[1] if found is not None and found[0]() is tensor else None

    def _name_of(self, tensor: torch.Tensor) -> str:
        return self._known(tensor) or "a leaf"


def _leaves(roots: list[Any]) -> list[torch.Tensor]:
    """The leaves that a backward pass reaches, in the order of the graph."""
    found: list[torch.Tensor] = []
    seen: set[Any] = set()
    stack = []
    for root in reversed(roots):
        node = getattr(root, "grad_fn", root)
        if node is None and getattr(root, "requires_grad", False):
            found.append(root)
        stack.append(node)
    while stack:
        node = stack.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        leaf = getattr(node, "variable", None) if node.__class__.__name__ == "AccumulateGrad" else None
        if leaf is not None:
            found.append(leaf)
        stack.extend(following for following, _ in reversed(node.next_functions))
    return found
