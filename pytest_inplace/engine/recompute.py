"""Reentrant checkpoints: does the function give the same outputs when it is run again in backward?

They save nothing that could be compared, so the outputs are: by rounding, for without gradients, as in the
first run, PyTorch may choose other kernels.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from pytest_inplace.engine import values
from pytest_inplace.engine.gradient_hooks import ActiveLedger, ActiveLens, suspect_of
from pytest_inplace.engine.quiet import quiet
from pytest_inplace.engine.reach import WRAPS
from pytest_inplace.reports import call_sites

if TYPE_CHECKING:
    import torch

    from pytest_inplace.engine.held import Held
    from pytest_inplace.engine.ledger import Ledger

_ROUNDING = 1024
_COARSEST = 0.05


class Rerun:
    """A checkpointed function that keeps what it gives the first time and compares after that."""

    def __init__(self, function: Callable[..., Any], preserves: bool, of: tuple[ActiveLedger, ActiveLens]):
        self.held: Held | None = None
        self._function, self._preserves = function, preserves
        self._active_ledger, self._active_lens = of
        self._first: list[torch.Tensor] | None = None

    def wrapped(self) -> Callable[..., Any]:
        """The function to give to the checkpoint."""

        @functools.wraps(self._function, updated=())
        def run(*args: Any) -> Any:
            __tracebackhide__ = True
            return self._run(args)

        setattr(run, WRAPS, self._function)
        return run

    def _run(self, args: tuple[Any, ...]) -> Any:
        import torch

        __tracebackhide__ = True
        before = None if self._preserves else torch.get_rng_state()
        result = self._function(*args)
        ledger, lens = self._active_ledger(), self._active_lens()
        if ledger is None or (lens is not None and lens.on_trial):
            return result
        with ledger.guarding("a recomputation"), torch._C.DisableTorchFunction():
            parts = result if isinstance(result, tuple | list) else [result]
            outputs = [each for each in parts if type(each) in values.plain_types()]
            if self._first is not None:
                self._compare(ledger, lens, outputs)
            elif before is not None and not before.equal(torch.get_rng_state()):
                self._first = []  # other random numbers in the second run were asked for
            else:
                with quiet():
                    self._first = [values.snapshot(output) for output in outputs]
        return result

    def _compare(self, ledger: Ledger, lens: Any, outputs: list[torch.Tensor]) -> None:
        held = self.held
        if held is None or held.ledger is not ledger:
            return
        for first, output in zip(self._first or [], outputs, strict=False):
            with quiet():
                if _nearly_equal(first, output):
                    continue
            suspect = suspect_of("recompute", held.key, output, held.where, output._version)
            suspect.used = call_sites.capture(sys._getframe(3))
            suspect.op = "CheckpointFunctionBackward"
            ledger.suspects.setdefault(held.key, suspect)
            if lens is not None:
                lens.outside.other_output(held.key, first, output)
            return


def _nearly_equal(first: torch.Tensor, output: torch.Tensor) -> bool:
    import torch

    if first.shape != output.shape or values.unreadable(output) is not None:
        return True  # the checkpoint itself has something to say, or nothing can be compared
    if values.same_values(first, output):
        return True
    if not first.is_floating_point() and not first.is_complex():
        return False
    tolerance = min(torch.finfo(first.dtype).eps * _ROUNDING, _COARSEST)
    a, b = values.widened(first), values.widened(output)
    scale = float(a.abs().nan_to_num(posinf=0.0).max()) if a.numel() else 0.0
    return torch.allclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)
