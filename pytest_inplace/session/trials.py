"""Runs of pytest in other processes, one at a time: forks of one that is kept, where the system has forks."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

_SLOW = ("torch", "numpy", "torch._dynamo")
"""What takes long to load; that torch is needed is certain, the others are if this process has them."""
_SERVER = Path(__file__).with_name("trial_server.py")


@dataclass(frozen=True)
class Trial:
    """One finished run. ``returncode`` is ``None`` where it ran out of time."""

    returncode: int | None
    output: str


class Trials:
    """Starts its process with the first run, and ends it with :meth:`close`."""

    def __init__(self, folder: Path) -> None:
        self._output = folder / "output.txt"
        self._server: subprocess.Popen[str] | None = None

    def run(self, arguments: list[str], folder: Path, environment: dict[str, str], timeout: float) -> Trial:
        if not hasattr(os, "fork"):
            return self._run_alone(arguments, folder, environment, timeout)
        task = {
            "arguments": arguments, "folder": str(folder), "environment": environment,
            "timeout": timeout, "output": str(self._output),
        }  # fmt: skip
        server = self._start()
        assert server.stdin is not None
        assert server.stdout is not None
        server.stdin.write(json.dumps(task) + "\n")
        server.stdin.flush()
        answer = server.stdout.readline()
        returncode = json.loads(answer)["returncode"] if answer else -1
        return Trial(returncode, _text(self._output))

    def _start(self) -> subprocess.Popen[str]:
        if self._server is None or self._server.poll() is not None:
            kept = {
                key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV_"))
            }
            slow = [name for name in _SLOW if name in sys.modules or name == "torch"]
            self._server = subprocess.Popen(
                [sys.executable, str(_SERVER), *slow], env={**kept, "PYTHONHASHSEED": "0"},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            )  # fmt: skip
        return self._server

    def _run_alone(
        self, arguments: list[str], folder: Path, environment: dict[str, str], timeout: float
    ) -> Trial:
        command = [sys.executable, "-m", "pytest", *arguments]
        with self._output.open("w") as output:
            try:
                done = subprocess.run(
                    command, cwd=folder, env=environment, timeout=timeout,
                    stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False,
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                return Trial(None, _text(self._output))
        return Trial(done.returncode, _text(self._output))

    def close(self) -> None:
        if self._server is not None and self._server.stdin is not None:
            self._server.stdin.close()
            self._server.wait()
            if self._server.stdout is not None:
                self._server.stdout.close()
            self._server = None


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace") if path.is_file() else ""
