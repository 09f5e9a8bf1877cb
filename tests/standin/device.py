"""The stand-in device: built once for each source and torch, cached, registered as ``standin``."""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
import types
from pathlib import Path
from typing import Any

import torch

NAME = "standin"
SOURCE = Path(__file__).with_name("standin.cpp")
_loaded: Any = None


def unavailable() -> str | None:
    """Why the stand-in cannot be built here, or ``None``."""
    if shutil.which("g++") is None and shutil.which("c++") is None:
        return "the stand-in device needs a C++ compiler"
    if not Path(sysconfig.get_paths()["include"], "Python.h").is_file():
        return "the stand-in device needs Python's headers"
    return None


def load() -> types.ModuleType:
    """Build (once, whichever process comes first), load and register the device; the result is its module."""
    global _loaded
    if _loaded is None:
        extension = _extension(_built())
        torch.utils.rename_privateuse1_backend(NAME)
        extension.register_hooks()
        module = _device_module(extension)
        torch._register_device_module(NAME, module)
        torch.utils.generate_methods_for_privateuse1_backend()
        # A device thread that still lets go of a backward pass when Python ends aborts the process.
        atexit.register(time.sleep, 0.1)
        _loaded = module
    return _loaded


def _built() -> Path:
    text = SOURCE.read_bytes() + Path(__file__).read_bytes()
    key = hashlib.sha256(text + f"{torch.__version__} {sys.version}".encode()).hexdigest()[:16]
    root = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "pytest-inplace-standin")
    root.mkdir(parents=True, exist_ok=True)
    library = root / f"standin_{key}.so"
    with (root / f"{key}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not library.exists():
            _compile(library)
    return library


def _compile(library: Path) -> None:
    from torch.utils import cpp_extension

    includes = [*cpp_extension.include_paths(), sysconfig.get_paths()["include"]]
    libraries = cpp_extension.library_paths()
    with tempfile.TemporaryDirectory(dir=library.parent) as folder:
        made = Path(folder, "standin.so")
        command = [
            shutil.which("g++") or "c++", "-std=c++20", "-O1", "-shared", "-fPIC",
            str(SOURCE), "-o", str(made),
            f"-DTORCH_EXTENSION_NAME={library.stem}", "-DTORCH_API_INCLUDE_EXTENSION_H",
            f"-D_GLIBCXX_USE_CXX11_ABI={int(torch._C._GLIBCXX_USE_CXX11_ABI)}",
            *(f"-I{path}" for path in includes), *(f"-L{path}" for path in libraries),
            "-lc10", "-ltorch", "-ltorch_cpu", "-ltorch_python",
        ]  # fmt: skip
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise RuntimeError(f"the stand-in device did not build:\n{done.stderr[-4000:]}")
        made.replace(library)


def _extension(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _device_module(extension: Any) -> types.ModuleType:
    """What torch asks a device's module for."""
    module = types.ModuleType(f"torch.{NAME}")
    generator = extension.default_generator()
    functions = {
        "is_available": lambda: True,
        "is_initialized": lambda: True,
        "_is_in_bad_fork": lambda: False,
        "device": lambda index: contextlib.nullcontext(),
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "synchronize": lambda device=None: torch.accelerator.synchronize(device),
        "reads": extension.reads,
        "manual_seed": generator.manual_seed,
        "manual_seed_all": generator.manual_seed,
        "get_rng_state": lambda device=None: generator.get_state(),
        "set_rng_state": lambda state, device=None: generator.set_state(state),
        "get_amp_supported_dtype": lambda: [torch.bfloat16, torch.float16],
    }
    for name, function in functions.items():
        setattr(module, name, function)
    return module
