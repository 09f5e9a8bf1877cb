"""What a test can change in its process: taken before it runs, so that a second run starts from the same."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from dataclasses import dataclass
from typing import Any

from pytest_inplace.engine.rng import RandomStates

_SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGALRM", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)


@dataclass(frozen=True)
class ProcessState:
    """Random number generators, environment, working directory, signal handlers, torch's global switches."""

    random: RandomStates
    environment: dict[str, str]
    directory: str | None
    signals: dict[Any, Any]
    torch_switches: tuple[Any, ...] | None

    @classmethod
    def capture(cls) -> ProcessState:
        try:
            directory: str | None = os.getcwd()
        except OSError:  # it has been deleted
            directory = None
        main = threading.current_thread() is threading.main_thread()
        return cls(
            RandomStates.capture(),
            dict(os.environ),
            directory,
            {number: signal.getsignal(number) for number in _SIGNALS} if main else {},
            _torch_switches(),
        )

    def restore(self) -> None:
        self.random.restore()
        if os.environ != self.environment:
            for key in set(os.environ) - set(self.environment):
                del os.environ[key]
            os.environ.update(self.environment)
        if self.directory is not None:
            with contextlib.suppress(OSError):
                os.chdir(self.directory)
        for number, handler in self.signals.items():
            if handler is not None and signal.getsignal(number) is not handler:
                with contextlib.suppress(ValueError, OSError):
                    signal.signal(number, handler)
        if self.torch_switches is not None:
            _set_torch_switches(self.torch_switches)


@dataclass
class Began:
    """What a test began with, in its first run."""

    state: ProcessState
    """Before the set-up of what is its own."""
    call: RandomStates | None = None
    """The random numbers right before its call, which a hook may have seeded."""
    names: dict[str, Any] | None = None
    """Those of a doctest."""


def _torch_switches() -> tuple[Any, ...] | None:
    torch = sys.modules.get("torch")
    if torch is None:
        return None
    return (
        torch.get_default_dtype(),
        torch.is_grad_enabled(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.is_anomaly_enabled(),
        torch.is_anomaly_check_nan_enabled(),
    )


def _set_torch_switches(switches: tuple[Any, ...]) -> None:
    if switches == _torch_switches():
        return
    torch = sys.modules["torch"]
    dtype, grad, deterministic, warn_only, anomaly, check_nan = switches
    torch.set_default_dtype(dtype)
    torch.set_grad_enabled(grad)
    torch.use_deterministic_algorithms(deterministic, warn_only=warn_only)
    torch.autograd.set_detect_anomaly(anomaly, check_nan)
