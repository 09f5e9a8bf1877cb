"""The hooks in place for a while: entered into this thread's stack of saved-tensor hooks, and taken out."""

from __future__ import annotations

from typing import Any

from pytest_inplace.engine import coexist, functions, gradient_hooks, references, user_hooks
from pytest_inplace.engine.ledger import Ledger
from pytest_inplace.engine.quiet import top_hooks
from pytest_inplace.engine.saved import Pack, Unpack, make_pack, make_unpack

_active: list[Watch] = []


def active_ledger() -> Ledger | None:
    """The ledger of the program that runs now, or ``None``."""
    return _active[-1].ledger if _active else None


def active_lens() -> Any:
    """The microscope that is watching now, or ``None``."""
    return _active[-1].lens if _active else None


class Watch:
    """Saved-tensor hooks over this thread from :meth:`start` to :meth:`stop`."""

    def __init__(
        self, ledger: Ledger, unpack: Unpack | None = None, lens: Any = None, walk: bool = True
    ) -> None:
        self.ledger = ledger
        self.lens = lens
        self._walk = walk
        self._custom_unpack = unpack
        self._pair: tuple[Pack, Unpack] | None = None

    def start(self) -> None:
        self._pair = (make_pack(self.ledger, self._walk), self._custom_unpack or make_unpack(active_ledger))
        self.resume()

    def resume(self) -> None:
        """Watch (again), with the hooks on top of this thread's stack."""
        import torch

        autograd = torch._C._autograd
        disabled = autograd._saved_tensors_hooks_get_disabled_error_message()
        if disabled is not None:
            # Some library left hooks switched off for the whole thread: we cannot see, so we say so.
            self._pair = None
            self.ledger.coverage.not_checked("saved-tensor hooks were disabled before the test")
        elif self._pair is not None:
            autograd._push_saved_tensors_default_hooks(*self._pair)
        coexist.install(_is_ours, _patches)
        _active.append(self)

    def pause(self) -> None:
        """Stop watching for a while; what was saved so far stays checked."""
        if self in _active:
            _active.remove(self)
            coexist.uninstall()
            if self._pair is not None and not coexist.give_up(self._pair):
                _remove_hooks(self._pair)

    def stop(self) -> None:
        """Stop watching for good."""
        self.pause()
        self.ledger.close()


def _patches() -> list[tuple[Any, str, Any]]:
    return [
        *functions.patches(active_ledger, active_lens),
        *gradient_hooks.patches(active_ledger, active_lens),
        *user_hooks.patches(active_ledger, active_lens),
        *references.patches(active_ledger),
    ]


def _is_ours(pair: tuple[Any, Any]) -> bool:
    return any(watch._pair is not None and pair[0] is watch._pair[0] for watch in _active)


def _remove_hooks(pair: tuple[Any, Any]) -> None:
    """Take our pair out of the stack of hooks, from below hooks that a fixture leaves behind, if any."""
    import torch

    autograd = torch._C._autograd
    above = []
    while (top := top_hooks()) is not None:
        autograd._pop_saved_tensors_default_hooks()
        if top == pair:
            break
        above.append(top)
    for pack, unpack in reversed(above):
        autograd._push_saved_tensors_default_hooks(pack, unpack)
