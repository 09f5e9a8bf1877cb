"""A script, not a module: runs pytest in forks of one process that has torch loaded, for that takes seconds.

Reads one task in JSON from each line of standard input, and writes its outcome to standard output. It must
not be imported as a part of the package, which pytest wants to see imported in each fork anew.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import sys
import time
from typing import Any


def main() -> None:
    sys.path.pop(0)  # the folder of this script
    for name in sys.argv[1:]:
        with contextlib.suppress(ImportError):
            __import__(name)
    for line in sys.stdin:
        print(json.dumps(outcome(json.loads(line))), flush=True)


def outcome(task: dict[str, Any]) -> dict[str, Any]:
    """Run one task in a fork; ``returncode`` is ``None`` where it ran out of time."""
    child = os.fork()
    if child == 0:
        code = 3
        try:
            code = run(task)
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    deadline = time.monotonic() + task["timeout"]
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return {"returncode": os.waitstatus_to_exitcode(status)}
        if time.monotonic() > deadline:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return {"returncode": None}
        time.sleep(0.02)


def run(task: dict[str, Any]) -> int:
    """What ``python -m pytest`` would do, with its output in a file."""
    os.setsid()
    output = os.open(task["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    for stream, target in ((0, os.open(os.devnull, os.O_RDONLY)), (1, output), (2, output)):
        os.dup2(target, stream)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115 - as long as the process lives
    os.environ.clear()
    os.environ.update(task["environment"])
    sys.path[:0] = [path for path in task["environment"].get("PYTHONPATH", "").split(os.pathsep) if path]
    sys.dont_write_bytecode = True
    os.chdir(task["folder"])
    import pytest

    return int(pytest.main(task["arguments"]))


if __name__ == "__main__":
    main()
