"""Which line saved a tensor and which line overwrote it, by looking after every line of the program."""

from __future__ import annotations

import sys
import warnings
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from .labels import Lines, load

if TYPE_CHECKING:
    from types import FrameType

_FILENAME = "<generated program>"


class _Stop(Exception):
    """Where plain PyTorch raises: what happens afterwards does no harm."""


@dataclass
class _Look:
    """A tensor that is looked at after each line: what it held when it was saved, which lines changed it."""

    held: torch.Tensor
    saved: tuple[bytes, int] = field(init=False)
    last: tuple[bytes, int] = field(init=False)
    lines: set[int] = field(default_factory=set)
    used: bool = False

    def __post_init__(self) -> None:
        self.saved = self.last = self.now()

    def now(self) -> tuple[bytes, int]:
        return _content(self.held), self.held._version

    def look(self, line: int) -> None:
        now = self.now()
        if now != self.last:
            self.lines.add(line)
            self.last = now


@dataclass
class _Save:
    """A saved tensor. Which of its two looks counts is known when a node uses it.

    Autograd keeps an input itself, so that ``h.data = other`` changes what it will use, and of an output an
    alias.
    """

    line: int
    itself: _Look
    alias: _Look
    made_by: Any

    def of(self, node: Any) -> _Look:
        return self.alias if node is not None and self.made_by == node else self.itself


def _content(tensor: torch.Tensor) -> bytes:
    data: bytes = tensor.detach().numpy().tobytes()
    return data


def _same_elements(a: torch.Tensor, b: torch.Tensor) -> bool:
    return (a.data_ptr(), a.shape, a.stride()) == (b.data_ptr(), b.shape, b.stride())


def _frame() -> FrameType:
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and frame.f_code.co_filename != _FILENAME:
        frame = frame.f_back
    assert frame is not None
    return frame


class Watch:
    """Saved-tensor hooks and a tracer that attribute every change of a saved value to a line."""

    def __init__(self) -> None:
        self.saves: list[_Save] = []
        self.line = 0
        self.running: Any = None
        self.unpacked: list[_Look] = []  # by the node that runs

    def pack(self, tensor: torch.Tensor) -> _Save:
        save = _Save(_frame().f_lineno, _Look(self.kept(tensor)), _Look(tensor.detach()), tensor.grad_fn)
        self.saves.append(save)
        return save

    def unpack(self, save: _Save) -> torch.Tensor:
        node = torch._C._current_autograd_node()
        look = save.of(node)
        if look.now() != look.saved:
            look.used = True
        if look.now()[1] != look.saved[1]:
            raise _Stop
        if node != self.running:
            self.running, self.unpacked = node, []
        self.unpacked.append(look)
        return look.held.detach()

    def kept(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor that plain PyTorch would keep.

        A node that is differentiated itself saves again what it has unpacked. That is a copy of our tensor,
        because there are hooks; without them it is the tensor.
        """
        if self.running is not None and self.running == torch._C._current_autograd_node():
            for look in self.unpacked:
                if _same_elements(look.held, tensor):
                    return look.held
        return tensor

    def look(self) -> None:
        """Attribute what changed since the last look to the line that ran since."""
        for save in self.saves:
            save.itself.look(self.line)
            save.alias.look(self.line)

    def trace(self, frame: FrameType, event: str, _: Any) -> Any:
        if frame.f_code.co_filename != _FILENAME:
            return None
        if event in ("line", "return"):
            self.look()
            self.line = frame.f_lineno
        return self.trace


def harmful_lines(source: str) -> Lines:
    """Run a program and say which lines wrote to saved values that backward used changed."""
    watch, program = Watch(), load(source)
    before = sys.gettrace()
    with warnings.catch_warnings(), torch.autograd.graph.saved_tensors_hooks(watch.pack, watch.unpack):
        warnings.simplefilter("ignore")
        sys.settrace(watch.trace)
        try:
            program()
        except Exception:  # noqa: S110 - the plain run has told already what the program raises
            pass
        finally:
            sys.settrace(before)
    used = [(save.line, look) for save in watch.saves for look in (save.itself, save.alias) if look.used]
    found = Lines(
        written=frozenset(line for _, look in used for line in look.lines),
        saved=frozenset(line for line, _ in used),
        changed=any(save.itself.saved != save.itself.last for save in watch.saves),
    )
    watch.saves.clear()  # they hold nodes, which hold them
    watch.unpacked.clear()
    return found
