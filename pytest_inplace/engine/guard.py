"""The entry points of the engine: :func:`examine` runs a program twice if need be, :func:`guard` once."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from pytest_inplace.engine.ledger import Ledger, Suspect
from pytest_inplace.engine.microscope import Microscope
from pytest_inplace.engine.replay import findings_of, replay
from pytest_inplace.engine.rng import RandomStates
from pytest_inplace.engine.watch import Watch
from pytest_inplace.reports.findings import Coverage, Finding


class InplaceError(AssertionError):
    """A watched program was found to corrupt gradients; ``findings`` says how.

    Raised while a test runs, it also carries what it was judged by, for a second run to look at again.
    """

    def __init__(self, findings: list[Finding], suspects: Iterable[Suspect] = ()) -> None:
        from pytest_inplace.reports.rendering import headline, report

        self.findings = findings
        self.suspects = list(suspects)
        text = "\n\n".join(report(finding) for finding in findings)
        super().__init__(text or "; ".join(headline(f) for f in findings))


@dataclass
class Examination:
    """What :func:`examine` saw: the program's own result or error, and what is wrong with it."""

    findings: list[Finding] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)
    result: Any = None
    error: BaseException | None = None


def examine(program: Callable[[], Any]) -> Examination:
    """Run ``program`` under the sentinel, and once more under the microscope if it is suspicious.

    The random number generators are set back before the second run. A version error that ``program``
    handles itself is no finding: PyTorch told it.
    """
    states = RandomStates.capture()
    ledger = Ledger()
    watch = Watch(ledger, walk=False)
    examination = Examination(coverage=ledger.coverage)
    watch.start()
    try:
        examination.result = program()
    except Exception as error:
        examination.error = error
    finally:
        watch.stop()
    suspects = pending(ledger.suspects.values(), examination.error)
    if suspects:
        after = RandomStates.capture()

        def again() -> None:
            states.restore()
            with suppress(Exception):  # the first run's outcome is the one that counts
                program()

        examination.findings = replay(again, suspects, coverage=ledger.coverage)
        after.restore()
    return examination


def pending(suspects: Any, *errors: BaseException | None) -> list[Suspect]:
    """The suspects but those whose error the program has dealt with: it is none of ``errors``."""
    raised = [each for error in errors for each in chain(error)]
    return [s for s in suspects if s.error is None or any(s.error is e for e in raised)]


def chain(error: BaseException | None) -> list[BaseException]:
    """The error, its causes, its contexts and the members of groups."""
    found: list[BaseException] = []
    stack = [error]
    while stack:
        current = stack.pop()
        if current is None or any(current is e for e in found):
            continue
        found.append(current)
        stack += [current.__cause__, current.__context__, *getattr(current, "exceptions", ())]
    return found


def native(error: BaseException | None) -> list[Finding]:
    """PyTorch's own refusal of an in-place operation, among an error and what led to it, explained."""
    from pytest_inplace.engine.native import explain

    return next(([finding] for each in chain(error) if (finding := explain(each)) is not None), [])


@dataclass
class GuardReport:
    """The findings of a guarded block, complete when the block has ended."""

    findings: list[Finding] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)


@contextmanager
def guard(*, raises: bool = True, latent: bool = True, lines: bool = True) -> Iterator[GuardReport]:
    """Check everything that runs inside the block, in one pass.

    Every saved tensor is copied when it is saved, so the block needs up to twice the memory for
    activations, and with ``lines`` user code is traced, which makes it several times slower.

    Args:
        raises: raise :class:`InplaceError` at the end of the block if there are findings. A version
            error that PyTorch raises inside the block goes on as it is, with the report as a note.
        latent: report overwritten tensors over which no backward pass ran, too.
        lines: find the line that wrote.

    Raises:
        InplaceError: see ``raises``.
    """
    report = GuardReport()
    microscope = Microscope(None, lines)
    report.coverage = microscope.ledger.coverage
    failure: BaseException | None = None
    microscope.start(sys._getframe(2))
    try:
        yield report
    except BaseException as error:
        failure = error
        raise
    finally:
        microscope.stop()
        suspects = pending(microscope.ledger.suspects.values(), failure)
        kept = [s for s in suspects if latent or not s.latent]
        report.findings[:] = [*findings_of(microscope, kept), *native(failure)]
        if failure is not None and report.findings and hasattr(failure, "add_note"):
            from pytest_inplace.reports.rendering import report as text

            failure.add_note("\n\n".join(text(finding) for finding in report.findings))
    if raises and report.findings:
        raise InplaceError(report.findings)
