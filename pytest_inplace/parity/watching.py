"""A program that names the device itself, run as it is: its copies and its streams are followed."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from pytest_inplace.parity.hazards import Hazards
from pytest_inplace.parity.modes import mode_classes
from pytest_inplace.parity.traffic import Traffic

if TYPE_CHECKING:
    import torch


class Watching:
    """What is seen inside ``with`` is in :attr:`hazards` then."""

    def __init__(self) -> None:
        self.hazards = Hazards()
        self._traffic = Traffic(self.hazards.tell, _on_host, streams=True)
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Watching:
        dispatch, function = mode_classes()
        self._stack.enter_context(self._traffic.listening())
        self._stack.enter_context(dispatch(self._dispatch))
        self._stack.enter_context(function(self._function))
        return self

    def __exit__(self, *exc: object) -> None:
        self._stack.close()

    def _dispatch(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.hazards.look(func, args, kwargs)
        result = func(*args, **kwargs)
        self._traffic.ran(func, args, kwargs, result)
        return result

    def _function(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._traffic.asked(func, args)
        return func(*args, **kwargs)


def _on_host(tensor: torch.Tensor) -> bool:
    return tensor.is_cpu
