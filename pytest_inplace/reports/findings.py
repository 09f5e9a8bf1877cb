"""What the engine found, as plain data: no tensors, no torch, no pytest.

A :class:`Finding` says which rule was broken, on which tensor, where it was saved, overwritten and
used, which values changed and which gradients came out wrong. Text and machine formats are pure
functions of it (:mod:`pytest_inplace.reports.rendering`), and it crosses process borders as JSON.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from pytest_inplace.reports import pictures
from pytest_inplace.reports.parity import Divergence, divergence_from_json, divergence_to_json
from pytest_inplace.reports.pictures import HeatMap, Histogram

State = Literal["confirmed", "latent"]


@dataclass(frozen=True)
class Rule:
    """One way to corrupt a gradient: its code, its name and what happened, in one sentence."""

    code: str
    name: str
    summary: str


RULES: tuple[Rule, ...] = (
    Rule("INP101", "saved-tensor-modified", "a tensor that autograd saved was written in place"),
    Rule(
        "INP102",
        "saved-tensor-modified-silently",
        "a tensor that autograd saved was overwritten behind its version counter",
    ),
    Rule("INP103", "leaf-modified", "a leaf that requires grad changed between its use and backward"),
    Rule("INP104", "leaf-inplace", "an in-place operation on a leaf that requires grad"),
    Rule("INP105", "view-inplace", "an in-place operation on a view that autograd forbids"),
    Rule(
        "INP201", "ctx-attribute-modified", "a Function kept a tensor on ctx, and it changed before backward"
    ),
    Rule(
        "INP202",
        "input-modified-without-mark-dirty",
        "a Function's forward wrote to its input and did not mark it dirty",
    ),
    Rule("INP203", "grad-modified", "a backward or a hook changed in place a gradient that others share"),
    Rule("INP204", "recompute-diverged", "a checkpoint recomputed other values than the forward pass had"),
    Rule("INP205", "hooks-aliased", "saved-tensor hooks kept an alias of a tensor, and that changed"),
    Rule("INP206", "frozen-modified", "a tensor that the test declared frozen was written"),
    Rule("INP301", "parity-diverged", "another device computes something else than rounding explains"),
    Rule("INP302", "parity-finding-differs", "an in-place operation is an error on another device only"),
)
_BY_KEY = {key: rule for rule in RULES for key in (rule.code, rule.name)}


def rule_for(key: str) -> Rule:
    """The rule with this code (``"INP102"``) or name (``"leaf-modified"``).

    Raises:
        KeyError: if there is no such rule; the message lists the known ones.
    """
    try:
        return _BY_KEY[key]
    except (KeyError, TypeError):
        known = ", ".join(f"{rule.code} {rule.name}" for rule in RULES)
        raise KeyError(f"unknown rule {key!r}; known rules: {known}") from None


@dataclass(frozen=True)
class Site:
    """A place in source code; ``column`` and ``end_column`` are 0-based character offsets, if known.

    ``qualname`` is the function's name with those of the classes and functions around it.
    """

    path: str
    line: int
    function: str
    source: str | None = None
    column: int | None = None
    end_column: int | None = None
    op: str | None = None
    qualname: str | None = None

    def same_line(self, other: Site | None) -> bool:
        return other is not None and (self.path, self.line) == (other.path, other.line)


@dataclass(frozen=True)
class TensorInfo:
    """What the finding is about; ``dtype`` is torch's name without the ``torch.`` prefix."""

    name: str | None
    shape: tuple[int, ...]
    dtype: str
    device: str = "cpu"
    leaf: bool = False


@dataclass(frozen=True)
class Change:
    """One element: its index in the tensor, its value when saved and its value now."""

    index: tuple[int, ...]
    before: str
    after: str


@dataclass(frozen=True)
class ValueDiff:
    """How a tensor's elements differ from what they were; ``largest`` is ordered, largest first."""

    changed: int
    total: int
    max_abs: float | None
    largest: tuple[Change, ...] = ()
    heat: HeatMap | None = None


@dataclass(frozen=True)
class GradientError:
    """The computed gradient of one leaf against the right one.

    ``max_abs`` is ``max|g - r|`` and ``max_rel`` is ``max|g - r| / max|r|`` for the computed gradient
    ``g`` and the right gradient ``r`` (the one from untouched values); ``cosine`` is that of the angle
    between them. ``None`` where a quantity does not exist.
    """

    name: str
    shape: tuple[int, ...]
    max_abs: float | None
    max_rel: float | None
    cosine: float | None = None
    right: tuple[str, ...] = ()
    computed: tuple[str, ...] = ()
    histogram: Histogram | None = None


@dataclass(frozen=True)
class OtherTensor:
    """A further tensor that the same line overwrote, and where that one was saved."""

    tensor: TensorInfo
    saved: Site | None


@dataclass(frozen=True)
class Finding:
    """One defect: a line that wrote, and what came of it.

    ``relative_error`` is ``|g - r| / |r|`` in the 2-norm over the gradients of all leaves together, for
    the computed gradients ``g`` and the right ones ``r``. ``occurrences`` counts how often the line did
    it, ``also`` the other tensors that it overwrote. ``accepted`` says what accepts it (``"baseline"``), if
    anything does: it is reported and fails nothing.
    """

    code: str
    state: State
    tensor: TensorInfo
    saved: Site | None = None
    modified: Site | None = None
    modified_exact: bool = False
    used: Site | None = None
    version_saved: int | None = None
    version_now: int | None = None
    values: ValueDiff | None = None
    gradients: tuple[GradientError, ...] = ()
    gradients_judged: bool = False
    gradients_total: int = 0
    relative_error: float | None = None
    raised: str | None = None
    replayed: bool = False
    occurrences: int = 1
    also: tuple[OtherTensor, ...] = ()
    fix: str | None = None
    note: str | None = None
    divergence: Divergence | None = None
    process: str | None = None
    """The child process that it happened in, by its rank or name."""
    accepted: str | None = None

    @property
    def rule(self) -> Rule:
        return _BY_KEY[self.code]

    @property
    def key(self) -> tuple[object, ...]:
        """Two findings with the same key are occurrences of one defect."""
        where = self.modified or self.saved
        return (self.code, self.state, self.modified is None, where and (where.path, where.line))


@dataclass
class Coverage:
    """How much was checked: saves seen, by content, by version only, and what could not be and why."""

    saved: int = 0
    content_checked: int = 0
    version_only: int = 0
    reasons: dict[str, int] = field(default_factory=dict)

    def not_checked(self, reason: str) -> None:
        self.reasons[reason] = self.reasons.get(reason, 0) + 1

    def add(self, other: Coverage) -> None:
        self.saved += other.saved
        self.content_checked += other.content_checked
        self.version_only += other.version_only
        for reason, count in other.reasons.items():
            self.reasons[reason] = self.reasons.get(reason, 0) + count


def merge(findings: Iterable[Finding]) -> list[Finding]:
    """One finding per defect, in the order of first occurrence; the first one's details are kept."""
    merged: dict[tuple[object, ...], Finding] = {}
    for finding in findings:
        first = merged.setdefault(finding.key, finding)
        if first is finding:
            continue
        if _same_tensor(first.tensor, first.saved, finding):
            merged[finding.key] = dataclasses.replace(
                first, occurrences=first.occurrences + finding.occurrences
            )
        elif not any(_same_tensor(o.tensor, o.saved, finding) for o in first.also) and len(first.also) < 50:
            merged[finding.key] = dataclasses.replace(
                first, also=(*first.also, OtherTensor(finding.tensor, finding.saved))
            )
    confirmed = {(key[2], key[3]) for key in merged if key[1] == "confirmed"}
    return [f for key, f in merged.items() if key[1] == "confirmed" or (key[2], key[3]) not in confirmed]


def _same_tensor(tensor: TensorInfo, saved: Site | None, other: Finding) -> bool:
    """Whether this is the same tensor, seen again on the same line (in another step of a loop, say)."""
    lines = [site and (site.path, site.line) for site in (saved, other.saved)]
    return lines[0] == lines[1] and tensor.name == other.tensor.name


def to_json(finding: Finding) -> dict[str, Any]:
    """The finding as the JSON contract has it (see the documentation of ``--inplace-json``)."""
    saved = finding.saved and {**_site_json(finding.saved), "op": finding.saved.op}
    modified = finding.modified and {**_site_json(finding.modified), "exact": finding.modified_exact}
    return {
        "code": finding.code,
        "rule": finding.rule.name,
        "state": finding.state,
        "tensor": _tensor_json(finding.tensor),
        "saved": saved,
        "modified": modified,
        "used": finding.used and _site_json(finding.used),
        "version": {"saved": finding.version_saved, "now": finding.version_now},
        "values": finding.values
        and {
            "changed": finding.values.changed,
            "total": finding.values.total,
            "max_abs": finding.values.max_abs,
            "largest": [
                {"index": list(c.index), "before": c.before, "after": c.after} for c in finding.values.largest
            ],
            "heat": pictures.heat_map_json(finding.values.heat),
        },
        "gradients": [
            {
                "name": g.name,
                "shape": list(g.shape),
                "max_abs": g.max_abs,
                "max_rel": g.max_rel,
                "cosine": g.cosine,
                "right": list(g.right),
                "computed": list(g.computed),
                "histogram": pictures.histogram_json(g.histogram),
            }
            for g in finding.gradients
        ],
        "gradients_judged": finding.gradients_judged,
        "gradients_total": finding.gradients_total,
        "relative_error": finding.relative_error,
        "raised": finding.raised,
        "replayed": finding.replayed,
        "occurrences": finding.occurrences,
        "also": [
            {"tensor": _tensor_json(other.tensor), "saved": other.saved and _site_json(other.saved)}
            for other in finding.also
        ],
        "fix": finding.fix,
        "note": finding.note,
        "divergence": divergence_to_json(finding.divergence),
        "process": finding.process,
        "accepted": finding.accepted,
    }


def _tensor_json(tensor: TensorInfo) -> dict[str, Any]:
    return {**dataclasses.asdict(tensor), "shape": list(tensor.shape)}


def _site_json(site: Site) -> dict[str, Any]:
    return {
        "path": site.path,
        "line": site.line,
        "function": site.function,
        "qualname": site.qualname,
        "source": site.source,
        "columns": None if site.column is None else [site.column, site.end_column],
    }


def from_json(data: dict[str, Any]) -> Finding:
    """The inverse of :func:`to_json`.

    Raises:
        KeyError, TypeError, ValueError: if ``data`` is not a finding.
    """
    rule_for(data["code"])
    values = data["values"] and ValueDiff(
        data["values"]["changed"],
        data["values"]["total"],
        data["values"]["max_abs"],
        tuple(Change(tuple(c["index"]), c["before"], c["after"]) for c in data["values"]["largest"]),
        pictures.heat_map(data["values"].get("heat")),
    )
    gradients = tuple(
        GradientError(
            g["name"],
            tuple(g["shape"]),
            g["max_abs"],
            g["max_rel"],
            g["cosine"],
            tuple(g["right"]),
            tuple(g["computed"]),
            pictures.histogram(g.get("histogram")),
        )
        for g in data["gradients"]
    )
    return Finding(
        code=data["code"],
        state=data["state"],
        tensor=_tensor(data["tensor"]),
        saved=_site(data["saved"]),
        modified=_site(data["modified"]),
        modified_exact=bool(data["modified"] and data["modified"]["exact"]),
        used=_site(data["used"]),
        version_saved=data["version"]["saved"],
        version_now=data["version"]["now"],
        values=values,
        gradients=gradients,
        gradients_judged=data["gradients_judged"],
        gradients_total=data["gradients_total"],
        relative_error=data["relative_error"],
        raised=data["raised"],
        replayed=data["replayed"],
        occurrences=data["occurrences"],
        also=tuple(OtherTensor(_tensor(o["tensor"]), _site(o["saved"])) for o in data["also"]),
        fix=data["fix"],
        note=data["note"],
        divergence=divergence_from_json(data.get("divergence")),
        process=data.get("process"),
        accepted=data.get("accepted"),
    )


def _tensor(data: dict[str, Any]) -> TensorInfo:
    return TensorInfo(**{**data, "shape": tuple(data["shape"])})


def _site(data: dict[str, Any] | None) -> Site | None:
    if data is None:
        return None
    column, end_column = data["columns"] or (None, None)
    return Site(
        data["path"],
        data["line"],
        data["function"],
        data["source"],
        column,
        end_column,
        data.get("op"),
        data.get("qualname"),
    )
