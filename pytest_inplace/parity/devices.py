"""Devices by name: whether one can be used, and how to make it as deterministic as it goes."""

from __future__ import annotations

import os
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

    _SETTINGS = (
        ("cudnn", "deterministic", True),
        ("cudnn", "benchmark", False),
        ("cudnn", "allow_tf32", False),
    )

    def __init__(self, name: str) -> None:
        import torch

        self._kind = torch.device(name).type
        self._kept: list[tuple[Any, str, Any]] = []
        self._workspace: str | None = None

    def __enter__(self) -> None:
        import torch

        if self._kind != "cuda":
            return
        backends: Any = torch.backends
        for owner, name, value in (
            *((getattr(backends, owner), name, value) for owner, name, value in self._SETTINGS),
            (backends.cuda.matmul, "allow_tf32", False),
            (backends.cuda.matmul, "allow_fp16_reduced_precision_reduction", False),
            (backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False),
        ):
            self._kept.append((owner, name, getattr(owner, name)))
            setattr(owner, name, value)
        self._workspace = os.environ.get("CUBLAS_WORKSPACE_CONFIG")
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")

    def __exit__(self, *exc: object) -> None:
        for owner, name, value in reversed(self._kept):
            setattr(owner, name, value)
        if self._kept and self._workspace is None:
            os.environ.pop("CUBLAS_WORKSPACE_CONFIG", None)
        self._kept.clear()
