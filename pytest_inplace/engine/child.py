"""A child process that checks itself, as its parent told it to, and leaves a report."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from collections.abc import Callable, Iterable
from multiprocessing.process import BaseProcess
from typing import TYPE_CHECKING, Any

from pytest_inplace.engine.late_import import forget, when_torch_is_imported

if TYPE_CHECKING:
    from pytest_inplace.engine.children import Order
    from pytest_inplace.engine.ledger import Ledger, Suspect
    from pytest_inplace.reports.findings import Finding

BEGUN, IDLE, DONE = "begun", "idle", "done"
"""How far a child was when it wrote its report; one that is idle waits for another task of a pool."""


def prepare() -> None:
    """In a new interpreter, before the process begins: let it check itself."""
    original: Any = BaseProcess.__dict__["_bootstrap"]
    if not hasattr(original, "_pytest_inplace"):
        BaseProcess._bootstrap = checking(original)  # type: ignore[attr-defined]


def checking(bootstrap: Callable[..., int]) -> Callable[..., int]:
    """What runs a process, with the check around it if the process was told to."""

    @functools.wraps(bootstrap)
    def checked(self: Any, *args: Any, **kwargs: Any) -> int:
        order = self.__dict__.pop("_pytest_inplace", None)
        _leave_the_parents_watch()
        run = functools.partial(bootstrap, self, *args, **kwargs)
        return run() if order is None else Child(order, self).run(run)

    checked._pytest_inplace = True  # type: ignore[attr-defined]
    return checked


def _leave_the_parents_watch() -> None:
    """A fork has its parent's hooks, patches and tracer, and a copy of its book."""
    if "torch" not in sys.modules:
        return
    from pytest_inplace.engine import watch

    for each in reversed(watch._active[:]):
        each.ledger.closed = True
        (each.lens or each).stop()


class Child:
    """The check of this process."""

    def __init__(self, order: Order, process: Any) -> None:
        self._order = order
        self._process = process
        self._suspects: list[Suspect] = []
        self._watch: Any = None
        self._lens: Any = None
        self._ledger: Ledger | None = None

    def run(self, bootstrap: Callable[[], int]) -> int:
        """Run the process; the result is its exit code."""
        # Without a report the parent counts this process as not checked.
        with contextlib.suppress(Exception):
            self._begin()
        code = bootstrap()
        with contextlib.suppress(Exception):
            self._finish(code)
        return code

    def _begin(self) -> None:
        from pytest_inplace.reports import call_sites

        for root in self._order.roots:
            call_sites.add_user_root(root)
        self._write([], BEGUN)
        if "torch" in sys.modules:
            self._start()
        else:
            when_torch_is_imported(self._start_late)
        self._report_after_each_task()

    def _start_late(self) -> None:
        with contextlib.suppress(Exception):
            self._start()

    def _start(self) -> None:
        from pytest_inplace.engine.ledger import Ledger
        from pytest_inplace.engine.watch import Watch

        if self._order.microscope:
            from pytest_inplace.engine.microscope import Microscope

            self._lens = Microscope(None)
            self._ledger = self._lens.ledger
            self._lens.start()
        else:
            self._ledger = Ledger()
            self._watch = Watch(self._ledger)
            self._watch.start()

    def _report_after_each_task(self) -> None:
        """A worker of a pool is killed in the end, so it reports whenever it hands over a result."""
        pool: Any = sys.modules.get("multiprocessing.pool")
        process: Any = self._process
        arguments: tuple[Any, ...] = getattr(process, "_args", ())
        if pool is not None and getattr(process, "_target", None) is pool.worker and len(arguments) > 1:
            process._args = (arguments[0], _Reporting(arguments[1], self), *arguments[2:])

    def report(self) -> None:
        """Report what came up so far; the process goes on."""
        try:
            self._look(0)
            self._write(self._findings() if self._ledger is not None else [], IDLE)
        except Exception:  # the test that started the pool has ended
            return

    def _look(self, code: int) -> None:
        """Take the suspects since the last look; an error that the program has dealt with is none."""
        if self._ledger is not None:
            new = self._ledger.take_suspects()
            self._suspects += [s for s in new if s.error is None or code]

    def _finish(self, code: int) -> None:
        if self._ledger is None:
            forget(self._start_late)
            self._write([], DONE)
            return
        if not code:
            self._ledger.drop_unused()
        (self._lens or self._watch).stop()
        self._look(code)
        if code:
            self._suspects = [s for s in self._suspects if not s.latent]
        self._write(self._findings(), DONE)
        (self._lens or self._watch).children.close()

    def _findings(self) -> list[Finding]:
        children = (self._lens or self._watch).children
        if self._lens is not None:
            from pytest_inplace.engine.replay import findings_of

            own = [*findings_of(self._lens, self._suspects), *self._lens.frozen_findings]
        else:
            own = self._unreplayed("not replayed")
        return [*own, *children.collect()]

    def _unreplayed(self, why: str) -> list[Finding]:
        if not self._suspects:  # a process that only loads data imports nothing for this
            return []
        from pytest_inplace.engine.replay import unreplayed

        return unreplayed(self._suspects, why)

    def _write(self, findings: Iterable[Finding], state: str) -> None:
        from pytest_inplace.engine.children import key_of
        from pytest_inplace.reports.findings import Coverage, to_json

        coverage = Coverage()
        suspects: Iterable[Any] = ()
        if self._ledger is not None:
            children = (self._lens or self._watch).children
            self._ledger.count()
            coverage.add(self._ledger.coverage)
            coverage.add(children.total())
            suspects = children.suspects
        document = {
            "process": self._name(),
            "state": state,
            "coverage": vars(coverage),
            "suspects": [*map(key_of, self._unreplayed("")), *suspects],
            "findings": [to_json(finding) for finding in findings],
        }
        temporary = self._order.path + ".tmp"
        with open(temporary, "w", encoding="utf-8") as file:
            json.dump(document, file)
        os.replace(temporary, self._order.path)

    def _name(self) -> str:
        """By rank, where the process has one."""
        rank = os.environ.get("RANK")
        target, arguments = self._process._target, self._process._args
        if getattr(target, "__module__", None) == "torch.multiprocessing.spawn" and len(arguments) > 1:
            rank = str(arguments[1])
        return f"rank {rank}" if rank is not None else str(self._process.name)


class _Reporting:
    """The queue of a pool's results."""

    def __init__(self, queue: Any, child: Child) -> None:
        self._queue = queue
        self._child = child

    def put(self, result: Any) -> None:
        self._child.report()
        self._queue.put(result)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._queue, name)
