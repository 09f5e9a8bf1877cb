"""Devices by name: whether one can be used, and how to make it as deterministic as it goes."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable
from typing import Any


def unusable(name: str) -> str | None:
    """Why there is no such device here, or ``None``."""
    import torch

    try:
        device = torch.device(name)
    except RuntimeError:
        return f"torch knows no device {name!r}"
    if device.type == "cpu":
        return None
    module = getattr(torch, device.type, None)
    try:
        available = module is not None and module.is_available()
    except (AttributeError, RuntimeError):
        available = False
    if not available or module is None:
        return f"there is no {device.type} device here"
    count = getattr(module, "device_count", lambda: 1)()
    if device.index is not None and device.index >= count:
        return f"there is no device {name}, only {count} of its type"
    return None


def problem(error: BaseException, name: str) -> str | None:
    """What an error says about the device rather than about the program, or ``None``."""
    import torch

    if type(error).__name__ in ("Skipped", "SkipTest"):
        return f"it is skipped there: {error}"
    if type(error).__name__ == "XFailed":
        return f"it is expected to fail there: {error}"
    if isinstance(error, getattr(torch, "OutOfMemoryError", ())) or "out of memory" in str(error):
        return f"{name} is out of memory"
    text = str(error)
    broken = getattr(torch, "AcceleratorError", ())
    if isinstance(error, broken) or text.startswith(f"{name.partition(':')[0].upper()} error:"):
        return f"{name} reports {text.splitlines()[0]}"
    missing = ("Could not run", "not currently implemented for")
    if isinstance(error, NotImplementedError) and any(words in text for words in missing):
        operator = text.partition("'")[2].partition("'")[0]
        return f"{name} has no operator {operator}"
    if isinstance(error, TypeError | RuntimeError) and (
        "not implemented for" in text or ("support" in text and "dtype" in text)
    ):
        return f"{name} lacks a dtype: {text.splitlines()[0][:200]}"
    return None


class Determined:
    """Inside, the device computes as exactly and as repeatably as it can; its settings are put back after."""

    def __init__(self, name: str) -> None:
        import torch

        self._kind = torch.device(name).type
        self._kept: list[Callable[[], object]] = []

    def __enter__(self) -> None:
        import torch

        if self._kind != "cuda":
            return
        cudnn: Any = torch.backends.cudnn
        matmul: Any = torch.backends.cuda.matmul
        self._set(cudnn, "deterministic", True)
        self._set(cudnn, "benchmark", False)
        self._set(matmul, "allow_fp16_reduced_precision_reduction", False)
        self._set(matmul, "allow_bf16_reduced_precision_reduction", False)
        # A program that uses the new settings for TF32 cannot ask for the old ones, nor the other way round.
        try:
            self._set(cudnn, "allow_tf32", False)
        except RuntimeError:
            self._set(cudnn.conv, "fp32_precision", "ieee")
            self._set(cudnn.rnn, "fp32_precision", "ieee")
        try:
            before = torch.get_float32_matmul_precision()
            if hasattr(matmul, "fp32_precision"):  # which may say nothing where the other says "highest"
                self._kept.append(functools.partial(setattr, matmul, "fp32_precision", matmul.fp32_precision))
            torch.set_float32_matmul_precision("highest")
            self._kept.append(functools.partial(torch.set_float32_matmul_precision, before))
        except RuntimeError:
            self._set(matmul, "fp32_precision", "ieee")
        if "CUBLAS_WORKSPACE_CONFIG" not in os.environ:
            os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
            self._kept.append(functools.partial(os.environ.pop, "CUBLAS_WORKSPACE_CONFIG", None))

    def _set(self, owner: Any, name: str, value: Any) -> None:
        before = getattr(owner, name)
        setattr(owner, name, value)
        self._kept.append(functools.partial(setattr, owner, name, before))

    def __exit__(self, *exc: object) -> None:
        while self._kept:
            self._kept.pop()()
