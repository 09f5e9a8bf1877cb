"""Start the check when a test imports torch itself: a run that never imports torch does not pay for it."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Callable, Sequence
from types import ModuleType

_waiting: list[Callable[[], None]] = []


def when_torch_is_imported(action: Callable[[], None]) -> None:
    """Call ``action`` once, right after torch's import has finished."""
    _waiting.append(action)
    if _finder not in sys.meta_path:
        sys.meta_path.insert(0, _finder)


def forget(action: Callable[[], None]) -> None:
    """Take back :func:`when_torch_is_imported`; nothing is left in ``sys.meta_path``."""
    if action in _waiting:
        _waiting.remove(action)
    if not _waiting and _finder in sys.meta_path:
        sys.meta_path.remove(_finder)


class _Finder(importlib.abc.MetaPathFinder):
    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != "torch" or not _waiting:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec("torch")
        if spec is None or spec.loader is None:
            return spec
        loader = spec.loader
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            while _waiting:
                _waiting.pop(0)()

        loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


_finder = _Finder()
