"""Run the programs under the plugin and cut the output into one block for each failing test."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

HERE = Path(__file__).parent
PROGRAMS = HERE / "programs"
EXPECTED = HERE / "expected"
RECORDED_TORCH = "2.13.0"


def torch_is_the_recorded_one() -> bool:
    return metadata.version("torch").partition("+")[0] == RECORDED_TORCH


def blocks(arguments: list[str]) -> dict[str, str]:
    """The stem of each program -> its failure as pytest prints it, its summary line and its last line."""
    with tempfile.TemporaryDirectory() as folder:
        for program in PROGRAMS.glob("test_*.py"):
            shutil.copy(program, folder)
        Path(folder, "pytest.ini").write_text("[pytest]\n")
        command = [
            sys.executable,
            "-m",
            "pytest",
            "--inplace-check",
            "-p",
            "no:cacheprovider",
            "-rf",
            *arguments,
        ]
        settings = {"COLUMNS": "240", "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        environment = {**os.environ, **settings}
        # On a build server pytest prints whole summary lines; colours are another matter.
        for name in ("PYTEST_ADDOPTS", "CI", "BUILD_NUMBER", "PY_COLORS", "FORCE_COLOR"):
            environment.pop(name, None)
        done = subprocess.run(
            command, cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=300
        )
    return cut(done.stdout)


def cut(output: str) -> dict[str, str]:
    parts = re.split(r"^=+ (FAILURES|inplace|short test summary info) =+$", output, flags=re.M)
    sections = dict(zip(parts[1::2], parts[2::2], strict=True))
    names = {
        re.search(r"def (test_\w+)", path.read_text())[1]: path.stem  # type: ignore[index]
        for path in PROGRAMS.glob("test_*.py")
    }
    pieces = re.split(r"^_{3,} (test_\w+) _{3,}$", sections["FAILURES"], flags=re.M)
    found = {}
    for test, body in zip(pieces[1::2], pieces[2::2], strict=True):
        program = names[test]
        summaries = sections["inplace"].splitlines() + sections["short test summary info"].splitlines()
        lines = [line for line in summaries if f"{program}.py" in line]
        found[program] = normal(body).strip("\n") + "\n\n" + normal("\n".join(lines)) + "\n"
    return found


def normal(text: str) -> str:
    """Without what differs between machines and processes: paths, line numbers in torch, worker names."""
    text = re.sub(r"^\[gw\d+\].*\n", "", text, flags=re.M)
    text = re.sub(r"\S*site-packages/(torch/\S+?):\d+", r"<site-packages>/\1:N", text)
    text = re.sub(r"0x[0-9a-f]+", "0x...", text)
    return re.sub(r"(_ ){5,}_?", "_ _ _", text)
