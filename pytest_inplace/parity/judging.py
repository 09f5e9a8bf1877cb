"""Run a program on another device, and on the CPU again as need be, and say how the two compare."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any

from pytest_inplace.engine import values
from pytest_inplace.engine.guard import pending
from pytest_inplace.engine.ledger import Ledger, Suspect
from pytest_inplace.engine.microscope import Microscope
from pytest_inplace.engine.replay import from_sentinel, replay
from pytest_inplace.engine.watch import Watch
from pytest_inplace.parity.comparing import Difference, Judge, same_bits, unequal, within_rounding
from pytest_inplace.parity.devices import Determined, problem, unusable
from pytest_inplace.parity.locating import Located, Locator
from pytest_inplace.parity.placement import Placement
from pytest_inplace.parity.recording import Point, Recorder
from pytest_inplace.parity.watching import Watching
from pytest_inplace.reports import call_sites, fixes
from pytest_inplace.reports.findings import Finding, Site, TensorInfo
from pytest_inplace.reports.parity import Divergence, ParityRecord, Verdict

Again = Callable[[AbstractContextManager[Any]], "BaseException | None"]
"""Runs the program again from where the first run began, inside a context; the result is what it raised."""


@dataclass
class Run:
    """One more run: what it computed, what it raised, and what stood against it."""

    record: Recorder
    error: BaseException | None
    obstacles: list[tuple[str, Any]] = field(default_factory=list)
    shares_memory: bool = False
    names_device: bool = False
    hazards: list[tuple[str, Any]] = field(default_factory=list)
    suspects: list[Suspect] = field(default_factory=list)


class Comparison:
    """The CPU's run of one program against its runs on ``device``."""

    def __init__(self, again: Again, cpu: Recorder, device: str, asks: bool = False) -> None:
        """``asks``: whether the program puts questions to the check that watches it, so that one has to."""
        self._asks = asks
        self._again = again
        self._cpu = cpu
        self._device = device
        self._runs = 0
        self.findings: list[Finding] = []
        self.hazards: list[tuple[str, Site | None]] = []

    def result(self) -> ParityRecord:
        """Run as often as it takes, and judge; the findings are in :attr:`findings`."""
        why = unusable(self._device)
        if why is not None:
            return self._record("not compared", why)
        if self._device.partition(":")[0] == "cpu":
            return self._deterministic()
        there = self._on_device()
        seen = dict.fromkeys(there.hazards)
        if there.names_device:
            seen |= dict.fromkeys(self._watched())
        self.hazards = [(text, call_sites.resolve(where)) for text, where in seen]
        if there.error is not None and (reason := problem(there.error, self._device)) is not None:
            return self._record("not compared", reason)
        self._device_only_suspects(there)
        if self.findings:
            return self._record("differs", self.findings[0].note)
        if there.error is None and not self._unequal(there):
            return self._record("agrees", points=len(self._cpu.points), equal=len(self._cpu.points))
        return self._unlike(there)

    # -- runs -------------------------------------------------------------------------------------------

    def _run(self, placement: Placement | None, watch: bool = False) -> Run:
        recorder = Recorder()
        watching: Watch | Microscope | None = None
        if self._asks:
            watching = Microscope(None, lines=False)
        elif watch:
            watching = Watch(Ledger(), walk=True)

        @contextlib.contextmanager
        def around() -> Any:
            with placement or contextlib.nullcontext():
                if watching is not None:
                    watching.start()
                recorder.start()
                try:
                    yield
                finally:
                    recorder.stop()
                    if watching is not None:
                        watching.stop()
                    if placement is not None:
                        placement.story.shared_memory_written()

        self._runs += 1
        error = self._again(around())
        found = pending(watching.ledger.take_suspects(), error) if watching is not None else []
        suspects = [s for s in found if not s.latent and s.error is not None]
        if placement is None:
            return Run(recorder, error)
        return Run(
            recorder, error, placement.obstacles, placement.story.shares_memory, placement.story.names_device,
            list(placement.hazards.seen), suspects,
        )  # fmt: skip

    def _on_device(self) -> Run:
        with Determined(self._device):
            return self._run(Placement(self._device), watch=True)

    def _watched(self) -> list[tuple[str, Any]]:
        """What is to be seen of copies and streams where the program itself says what is where."""
        watching = Watching()
        self._runs += 1
        self._again(watching)
        return list(watching.hazards.seen)

    def _unequal(self, run: Run) -> list[Point]:
        return [*unequal(self._cpu, run.record), *(p for k, p in run.record.points.items()
                                                   if k not in self._cpu.points)]  # fmt: skip

    # -- verdicts ---------------------------------------------------------------------------------------

    def _record(self, verdict: Verdict, reason: str | None = None, **more: Any) -> ParityRecord:
        more.setdefault("points", len(self._cpu.points))
        return ParityRecord(
            self._device,
            verdict,
            reason,
            runs=self._runs,
            left_out=self._cpu.left_out,
            hazards=tuple(_located(text, site) for text, site in self.hazards),
            **more,
        )

    def _deterministic(self) -> ParityRecord:
        """Two runs on the CPU have to agree bit for bit."""
        watched = self._run(Placement("cpu"))
        self.hazards = [(text, call_sites.resolve(where)) for text, where in watched.hazards]
        if watched.error is None and not self._unequal(watched):
            return self._record("agrees", equal=len(self._cpu.points))
        # Not so with a mode that watches: a run without any decides.
        second = self._run(None)
        error = second.error
        different = self._unequal(second)
        if not different and error is None:
            return self._record("agrees", equal=len(self._cpu.points))
        # A first run may have changed what the second began with: runs that leave nothing behind tell.
        third, fourth = self._run(Placement("cpu")), self._run(Placement("cpu"))
        if third.error is None and fourth.error is None and not unequal(third.record, fourth.record):
            return self._record("not compared", "it depends on what its first run left behind")
        if not different:
            return self._record("not compared", f"its second run raised {_words(error)}")
        point = different[0]
        self._diverged(
            Difference(point, second.record.points.get((point.kind, point.time, point.name)), "bit for bit"),
            None, deterministic=False, others=len(different) - 1,
        )  # fmt: skip
        return self._record("differs", "two runs on the CPU differ", nondeterministic=_texts(different))

    def _unlike(self, there: Run) -> ParityRecord:
        """The two are not the same bit for bit: find out whether rounding explains it."""
        if there.error is None and within_rounding(self._cpu, there.record):
            equal = len(self._cpu.points) - len(unequal(self._cpu, there.record))
            return self._record("agrees", equal=equal, bound="a few roundings of its dtype")
        double = self._run(Placement("cpu", double=True))
        judge = Judge(double.record)
        differences = judge.differences(self._cpu, there.record)
        missing = there.error is None and self._cpu.points.keys() != there.record.points.keys()
        bound = judge.bound
        equal = len(self._cpu.points) - len(unequal(self._cpu, there.record))
        if not differences and there.error is None and not missing:
            return self._record("agrees", equal=equal, bound=bound)
        if there.error is not None and there.obstacles:
            return self._record("not portable", _at(*there.obstacles[0]))
        # Suspicious. Does the CPU agree with itself, in runs that begin as the one on the device did?
        control = self._run(Placement("cpu"))
        if control.error is not None:
            return self._record("not compared", f"a second run on the CPU raised {_words(control.error)}")
        if self._unequal(control):
            other = self._run(Placement("cpu"))
            if other.error is not None or unequal(control.record, other.record):
                return self._record("not compared", "two runs on the CPU differ: it is not deterministic")
            self._cpu = control.record
            differences = judge.differences(self._cpu, there.record)
            missing = there.error is None and self._cpu.points.keys() != there.record.points.keys()
            if not differences and there.error is None and not missing:
                return self._record("agrees", equal=equal, bound=bound)
        if there.obstacles:
            return self._record("not portable", _at(*there.obstacles[0]))
        if differences:
            judge.noise = self._run(Placement("cpu", double=True, noise=True)).record
            differences = judge.differences(self._cpu, there.record)
        if not differences and there.error is None and not missing:
            return self._record("agrees", equal=equal, bound=f"{bound}, with its rounding amplified")
        return self._located(there, differences, bound, equal)

    def _located(
        self, there: Run, differences: list[Difference], bound: str | None, equal: int
    ) -> ParityRecord:
        with Determined(self._device):
            twice = self._run(Placement(self._device))
            locator = Locator(self._device)
            self._run(Placement(self._device, observer=locator))
        unsteady = _texts(unequal(there.record, twice.record))
        if not differences and locator.found is None:
            why = "it computed other things there"
            if there.error is not None:
                why = f"it raised {_words(there.error)}{_apart(there)}"
            return self._record("not portable", why, nondeterministic=unsteady)
        if locator.found is None and not locator.not_repeated and not unsteady:
            # Every operator does what the CPU's does: what differs is rounding that the program amplifies.
            return self._record("agrees", equal=equal, bound=f"{bound}, each operator by itself")
        first = differences[0] if differences else None
        if first is None and locator.found is not None and there.error is not None:
            point = TensorInfo(None, (), "unknown", self._device)
            self.findings.append(self._finding(point, None, locator.found, f"it raised {_words(there.error)}",
                                               "exceptions", steady=not unsteady))  # fmt: skip
        elif first is not None:
            self._diverged(first, locator.found, deterministic=not unsteady, others=len(differences) - 1)
        else:
            return self._record("agrees", equal=equal, bound=bound, nondeterministic=unsteady)
        return self._record("differs", None, equal=equal, bound=bound, nondeterministic=unsteady)

    # -- findings ---------------------------------------------------------------------------------------

    def _diverged(
        self, first: Difference, located: Located | None, *, deterministic: bool, others: int
    ) -> None:
        tensor = TensorInfo(
            first.here.name,
            tuple(first.here.value.shape),
            values.dtype_name(first.here.value),
            self._device,
            first.here.kind in ("gradient", "parameter"),
        )
        self.findings.append(
            self._finding(tensor, first, located, first.here.text, first.bound, deterministic, others)
        )

    def _finding(
        self,
        tensor: TensorInfo,
        first: Difference | None,
        located: Located | None,
        point: str,
        bound: str,
        steady: bool,
        others: int = 0,
    ) -> Finding:
        diff = located.values if located is not None else None
        if diff is None and first is not None and first.there is not None:
            diff = values.difference(first.here.value, first.there.value)
        return Finding(
            code="INP301",
            state="confirmed",
            tensor=tensor,
            saved=call_sites.resolve(located.where, located.operator) if located is not None else None,
            used=call_sites.resolve(first.here.where) if first is not None else None,
            values=diff,
            replayed=True,
            fix=fixes.suggest("INP301", None) if located is not None else None,
            note=first.note if first is not None else None,
            divergence=Divergence(
                self._device,
                point,
                bound,
                first.error if first is not None else None,
                first.allowed if first is not None else None,
                located.operator if located is not None else None,
                located.phase if located is not None else None,
                located.inputs if located is not None else (),
                located.output if located is not None else None,
                steady,
                others,
            ),
        )

    def _device_only_suspects(self, there: Run) -> None:
        """What PyTorch refuses in backward there only: its formulas save other tensors there."""
        if not there.suspects:
            return
        placement = Placement(self._device)
        found: list[Finding] = []

        def again() -> None:
            self._again(placement)

        with Determined(self._device):
            self._runs += 1
            found = [f for f in replay(again, there.suspects) if f.raised is not None]
        found = found or [from_sentinel(s, "its line was not found again") for s in there.suspects]
        for finding in found:
            self.findings.append(
                dataclasses.replace(
                    finding,
                    code="INP302",
                    gradients=(),
                    note=f"{self._device} saves this tensor for {finding.saved and finding.saved.op}, "
                    f"the CPU does not: there it is {finding.code}",
                    divergence=Divergence(self._device, "findings", "findings"),
                )
            )


def _apart(run: Run) -> str:
    return "; NumPy arrays and tensors share no memory there" if run.shares_memory else ""


def _texts(points: list[Point]) -> tuple[str, ...]:
    return tuple(point.text for point in points[:10])


def _words(error: BaseException | None) -> str:
    """An error in one line, with the user's line that it came from."""
    if error is None:
        return "nothing"
    text = str(error).strip().splitlines()
    where, traceback = None, error.__traceback__
    while traceback is not None:
        if not call_sites.is_library(traceback.tb_frame.f_code):
            where = (traceback.tb_frame.f_code, traceback.tb_lasti)
        traceback = traceback.tb_next
    return _at(f"{type(error).__name__}{': ' + text[0][:200] if text else ''}", where)


def _at(reason: str, where: Any) -> str:
    return _located(reason, call_sites.resolve(where))


def _located(reason: str, site: Site | None) -> str:
    return f"{reason} ({site.path}:{site.line})" if site is not None else reason


__all__ = ["Comparison", "same_bits"]
