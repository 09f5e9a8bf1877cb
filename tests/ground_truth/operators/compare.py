"""The engine's verdict on a case against the truth. The only module here that imports the plugin."""

from __future__ import annotations

import gc
import math
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from .cases import Case, Excluded, Subject
from .labels import HIDDEN, OTHER_ERROR, RAISES, RIGHT, WRONG, Label, differences, labelled
from .programs import Gradients, operators, program, quietly

Examine = Callable[[Callable[[], Gradients]], Any]


@dataclass(frozen=True)
class Disagreement:
    """One way in which the engine and plain PyTorch differ on a case."""

    case: Case
    label: str
    kind: str
    detail: str

    def __str__(self) -> str:
        return f"{self.case.id}  [{self.label}] {self.kind}: {self.detail}"


@dataclass
class Report:
    """Counts over all cases of some operators."""

    labels: Counter[tuple[str, str]] = field(default_factory=Counter)  # (label, write)
    codes: Counter[tuple[str, str]] = field(default_factory=Counter)  # (label, codes and states)
    excluded: list[Excluded] = field(default_factory=list)
    disagreements: list[Disagreement] = field(default_factory=list)
    silent_although_counted: list[Case] = field(default_factory=list)

    @property
    def cases(self) -> int:
        return sum(self.labels.values())


def find_examine() -> Examine:
    """The engine's entry point."""
    from pytest_inplace.engine.guard import examine

    found: Examine = examine
    return found


def _error_text(error: BaseException | None) -> str:
    return "nothing" if error is None else f"{type(error).__module__}.{type(error).__qualname__}: {error}"


def _apart(plain: str, found: str) -> str:
    """Two texts from shortly before where they part."""
    apart = (i for i, (a, b) in enumerate(zip(plain, found, strict=False)) if a != b)
    start = max(next(apart, 0) - 60, 0)
    return f"plain raises {plain[start : start + 160]!r}, examine {found[start : start + 160]!r}"


def _numbers(examination: Any) -> list[float | None]:
    return [g.max_abs for finding in examination.findings for g in finding.gradients]


def _same(found: float | None, expected: float) -> bool:
    if found is None or not math.isfinite(found):
        return not math.isfinite(expected)
    return math.isclose(found, expected, rel_tol=1e-6, abs_tol=1e-300)


def _summary(examination: Any) -> str:
    """Codes and states of the findings, without repeats."""
    return ", ".join(sorted({f"{f.code} {f.state}" for f in examination.findings})) or "no finding"


def _check(label: Label, examination: Any) -> Iterator[tuple[str, str]]:
    plain, found = _error_text(label.plain.error), _error_text(examination.error)
    if plain != found:
        yield "another error", _apart(plain, found)
        return
    summary = _summary(examination)
    if label.kind == RAISES and not examination.findings:
        yield "missed", "the version error has no finding"
    if label.kind in (RAISES, OTHER_ERROR):
        return
    assert label.plain.gradients is not None
    shift = max(differences(label.plain.gradients, examination.result), default=0.0)
    if shift:
        yield "another result", f"the first run's gradients differ from plain's by {shift}"
    if label.kind == RIGHT and not label.either and examination.findings:
        confirmed = any(f.state == "confirmed" for f in examination.findings)
        yield "false alarm" if confirmed else "latent on right gradients", summary
    if label.kind in (WRONG, HIDDEN):
        if not any(f.state == "confirmed" for f in examination.findings):
            yield (
                "missed" if not examination.findings else "only latent",
                f"wrong by {label.max_abs}; {summary}",
            )
            return
        numbers = _numbers(examination)
        if not any(_same(number, label.max_abs) for number in numbers):
            yield "another size", f"wrong by {label.max_abs}, reported {numbers}"
        strange = [n for n in numbers if not any(_same(n, e) for e in label.per_gradient)]
        if strange:
            yield "no such gradient error", f"reported {strange}, true ones {label.per_gradient}"


def disagreements(case: Case, subject: Subject, label: Label, examine: Examine, report: Report) -> None:
    """Run `examine` on a case and add to the report what's not as it should be."""
    run = program(subject.recipe, case.leaf, case.target, case.write)
    try:
        with quietly():
            examination = examine(run)
    except Exception as error:
        text = _error_text(error)
        report.disagreements.append(Disagreement(case, label.kind, "examine itself raises", text))
        return
    report.codes[label.kind, _summary(examination)] += 1
    for kind, detail in _check(label, examination):
        report.disagreements.append(Disagreement(case, label.kind, kind, detail))


def check_operator(operator: str, examine: Examine | None, report: Report | None = None) -> Report:
    """Label all cases of an operator and, given the engine, compare its verdicts."""
    report = report or Report()
    with _database_frozen():
        for item in labelled(operator):
            _add(item, examine, report)
    return report


def _add(item: tuple[Case, Subject, Label] | Excluded, examine: Examine | None, report: Report) -> None:
    if isinstance(item, Excluded):
        report.excluded.append(item)
        return
    case, subject, label = item
    report.labels[label.kind, case.write] += 1
    if label.kind in (WRONG, HIDDEN) and case.write in ("version", "in_graph", "same_value"):
        report.silent_although_counted.append(case)
    if examine is not None:
        disagreements(case, subject, label, examine, report)


@contextmanager
def _database_frozen() -> Iterator[None]:
    """Out of the garbage collector's sight: explaining a finding walks all objects."""
    operators()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def check_case(identifier: str, examine: Examine | None) -> tuple[Label, Report]:
    """One case by its id."""
    wanted = Case.parse(identifier)
    for item in labelled(wanted.operator, only=wanted):
        if not isinstance(item, Excluded):
            case, subject, label = item
            report = Report()
            if examine is not None:
                disagreements(case, subject, label, examine, report)
            return label, report
    raise KeyError(identifier)
