"""Child processes of a watched program, seen from the parent: each one started by multiprocessing is told to
check itself and leaves its findings in a file.

A process that is a copy of this one or a program of its own cannot be told; Python programs are counted.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import sys
import tempfile
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from pytest_inplace.engine import child
from pytest_inplace.engine.child import BEGUN, IDLE
from pytest_inplace.reports.findings import Coverage, Finding, from_json

PROGRAM = "a Python program started as a subprocess"
FORKED = "a process forked by os.fork()"
ENDED = "a child process that was killed, or still ran when the test ended"
Key = tuple[str, Any, Any]


@dataclass
class Order:
    """What a child is told: where to leave its report, and whether to look for lines and gradients."""

    path: str
    microscope: bool
    roots: list[str]

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Unpickled in a new interpreter: see to it that the process to come checks itself."""
        self.__dict__.update(state)
        child.prepare()


@dataclass
class Children:
    """The child processes of one watched program, in the order in which they were started."""

    microscope: bool = False
    coverage: Coverage = field(default_factory=Coverage)
    started: int = 0
    suspects: set[Key] = field(default_factory=set)
    starting: bool = False
    _folder: str | None = None
    _processes: dict[int, weakref.ref[Any]] = field(default_factory=dict)
    _reports: dict[int, dict[str, Any]] = field(default_factory=dict)

    @contextlib.contextmanager
    def start(self, process: Any) -> Iterator[None]:
        """Give the process that starts inside the block its order."""
        from pytest_inplace.reports import call_sites

        if self._folder is None:
            self._folder = tempfile.mkdtemp(prefix="pytest-inplace-")
        number, self.started = self.started, self.started + 1
        process._pytest_inplace = Order(self._path(number), self.microscope, call_sites.user_roots())
        self.starting = True
        try:
            yield
        finally:
            self.starting = False
            process.__dict__.pop("_pytest_inplace", None)
        self._processes[number] = weakref.ref(process)

    def _path(self, number: int) -> str:
        return os.path.join(self._folder or "", f"{number}.json")

    def collect(self) -> list[Finding]:
        """What the children have found since the last call."""
        found: list[Finding] = []
        for number in self._processes:
            report = self._read(number) or self._reports.get(number)
            if report is None:
                continue
            earlier = self._reports.get(number, {"findings": []})["findings"]
            self._reports[number] = report
            self.suspects.update((code, path, line) for code, path, line in report["suspects"])
            found += [
                replace(from_json(each), process=each["process"] or report["process"])
                for each in report["findings"]
                if each not in earlier
            ]
        return one_of_each(found)

    def total(self) -> Coverage:
        """How much the children checked, and what of them was not checked."""
        total = Coverage()
        total.add(self.coverage)
        for report in self._reports.values():
            counted = report["coverage"]
            total.add(
                Coverage(*(counted[k] for k in ("saved", "content_checked", "version_only", "reasons")))
            )
        return total

    def _read(self, number: int) -> dict[str, Any] | None:
        with contextlib.suppress(OSError, ValueError):
            report: dict[str, Any] = json.loads(Path(self._path(number)).read_text(encoding="utf-8"))
            return report
        return None

    def close(self) -> None:
        """The program has ended."""
        for number, ref in self._processes.items():
            state = self._reports.get(number, {"state": BEGUN})["state"]
            process = ref()
            alive = process is not None and not process._closed and process.is_alive()
            if state == BEGUN or (state == IDLE and alive):
                self.coverage.not_checked(ENDED)
        self._processes.clear()
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def key_of(finding: Finding) -> Key:
    """What the reports of two runs have in common about one defect."""
    site = finding.saved or finding.used
    return finding.code, site and site.path, site and site.line


def one_of_each(findings: Iterable[Finding]) -> list[Finding]:
    """One finding for a defect that several processes have; it names them all."""
    merged: dict[Any, Finding] = {}
    for finding in findings:
        saved = finding.saved and (finding.saved.path, finding.saved.line)
        key = (*finding.key, finding.tensor, saved)
        first = merged.get(key)
        if first is None:
            merged[key] = finding
        elif finding.process and finding.process not in (first.process or "").split(", "):
            merged[key] = replace(first, process=f"{first.process}, {finding.process}")
    return list(merged.values())


class Watching(Protocol):
    """What a watch offers to the children."""

    children: Children


ActiveWatch = Callable[[], "Watching | None"]


def patches(active_watch: ActiveWatch) -> list[tuple[Any, str, Any]]:
    """What to replace, by what: ``(owner, attribute, replacement)``."""
    import subprocess
    from multiprocessing.process import BaseProcess

    start: Any = BaseProcess.start
    spawn: Any = subprocess.Popen.__init__
    _count_forks(active_watch)

    @functools.wraps(start)
    def start_process(self: Any) -> None:
        watch = active_watch()
        if watch is None or _belongs_to_the_compiler(sys._getframe(1)):
            start(self)
            return
        with watch.children.start(self):
            start(self)

    @functools.wraps(spawn)
    def start_program(self: Any, args: Any, *rest: Any, **kwargs: Any) -> None:
        watch = active_watch()
        if watch is not None and _is_python(args) and not _belongs_to_the_compiler(sys._getframe(1)):
            watch.children.coverage.not_checked(PROGRAM)
        spawn(self, args, *rest, **kwargs)

    return [
        (BaseProcess, "start", start_process),
        (BaseProcess, "_bootstrap", child.checking(BaseProcess.__dict__["_bootstrap"])),
        (subprocess.Popen, "__init__", start_program),
    ]


_counting: list[ActiveWatch] = []


def _count_forks(active_watch: ActiveWatch) -> None:
    """Python never forgets such a function, so it is given once and does nothing while nothing is watched."""
    if _counting or not hasattr(os, "register_at_fork"):
        return
    _counting.append(active_watch)

    def forked() -> None:
        watch = active_watch()
        if watch is not None and not watch.children.starting:
            watch.children.coverage.not_checked(FORKED)

    os.register_at_fork(after_in_parent=forked)


def _belongs_to_the_compiler(frame: Any) -> bool:
    """Whether it is one of Inductor's own workers, which outlive the test and run nothing of its."""
    while frame is not None:
        if str(frame.f_globals.get("__name__")).startswith("torch._inductor"):
            return True
        frame = frame.f_back
    return False


def _is_python(args: Any) -> bool:
    """Whether a command line runs Python, as far as its first word tells."""
    first = args[0] if isinstance(args, list | tuple) and args else args
    if not isinstance(first, str | os.PathLike):
        return False
    name = os.path.basename(os.fspath(first).partition(" ")[0])
    return name.startswith(("python", "torchrun", "accelerate", "deepspeed", "pytest"))
