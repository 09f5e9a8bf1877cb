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
class _Save:
    """A saved tensor: itself, its content, and the lines that changed it."""

    line: int
    held: torch.Tensor
    content: bytes
    version: int
    last: tuple[bytes, int]
    lines: set[int] = field(default_factory=set)
    used: bool = False


def _content(tensor: torch.Tensor) -> bytes:
    data: bytes = tensor.detach().numpy().tobytes()
    return data


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

    def pack(self, tensor: torch.Tensor) -> _Save:
        frame = _frame()
        content, version = _content(tensor), tensor._version
        save = _Save(frame.f_lineno, tensor, content, version, (content, version))
        self.saves.append(save)
        return save

    def unpack(self, save: _Save) -> torch.Tensor:
        now, version = _content(save.held), save.held._version
        if (now, version) != (save.content, save.version):
            save.used = True
        if version != save.version:
            raise _Stop
        return save.held.detach()

    def look(self) -> None:
        """Attribute what changed since the last look to the line that ran since."""
        for save in self.saves:
            now = _content(save.held), save.held._version
            if now != save.last:
                save.lines.add(self.line)
                save.last = now

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
    used = [save for save in watch.saves if save.used]
    return Lines(
        written=frozenset(line for save in used for line in save.lines),
        saved=frozenset(save.line for save in used),
        changed=any((save.content, save.version) != save.last for save in watch.saves),
    )
