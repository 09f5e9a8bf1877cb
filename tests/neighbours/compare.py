"""Run the same tests with and without the plugin, each in a process of its own, and read what they showed."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.neighbours.recorder import FILE

ROOT = Path(__file__).parent.parent.parent
PROGRAMS = Path(__file__).parent / "programs"


@dataclass
class Shown:
    """What one run showed: for each test its reports and warnings, what each run of it noted, our records."""

    seen: dict[str, list[Any]]
    noted: dict[str, list[list[Any]]]
    records: dict[str, Any]
    output: str


def both(path: Path, folder: Path, *args: str) -> tuple[Shown, Shown]:
    """Run the tests of a file without and with the check, side by side."""
    path = Path(shutil.copy(path, folder))  # out of the reach of this folder's conftest
    command = [sys.executable, "-m", "pytest", str(path), "-p", "tests.neighbours.recorder", "-q"]
    # With python_files=*.py pytest would rewrite the assertions of all modules of torch, too.
    command += ["-p", "no:randomly", "-p", "no:cacheprovider", f"--rootdir={folder}"]
    runs = []
    for i, options in enumerate((["-p", "no:inplace"], ["--inplace-check"])):
        file = folder / f"shown-{i}.pickle"
        environment = {**os.environ, FILE: str(file), "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
        # What one run compiled, the other would find, and do less.
        environment["TORCHINDUCTOR_CACHE_DIR"] = str(folder / f"compiled-{i}")
        process = subprocess.Popen(
            [*command, *args, *options],
            cwd=folder, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        runs.append((process, file))
    shown = []
    for process, file in runs:
        output = process.communicate(timeout=900)[0]
        assert file.exists(), output
        shown.append(Shown(*pickle.loads(file.read_bytes()), output))
    return shown[0], shown[1]


def difference(plain: list[Any], checked: list[Any]) -> str | None:
    """The first difference in words. The full one of pytest takes minutes for lists like these."""
    if len(plain) != len(checked):
        return f"{len(plain)} things without, {len(checked)} with the plugin"
    for i, (without, with_it) in enumerate(zip(plain, checked, strict=True)):
        if isinstance(without, list) and isinstance(with_it, list) and without != with_it:
            return f"in {i}: {difference(without, with_it)}"
        if without != with_it:
            return f"{i} is {_short(without)} without, {_short(with_it)} with the plugin"
    return None


def _short(value: Any) -> str:
    return repr(value)[:2000]
