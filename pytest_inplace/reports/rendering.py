"""A finding as text. Pure functions of the data: no torch, no pytest, no terminal."""

from __future__ import annotations

import math

from pytest_inplace.reports.findings import Finding, GradientError, Site, TensorInfo, ValueDiff
from pytest_inplace.reports.parity import Divergence

_SHORT_DTYPES = {
    "float64": "f64", "float32": "f32", "float16": "f16", "bfloat16": "bf16",
    "complex32": "c32", "complex64": "c64", "complex128": "c128", "bool": "b8",
    "int64": "i64", "int32": "i32", "int16": "i16", "int8": "i8",
    "uint64": "u64", "uint32": "u32", "uint16": "u16", "uint8": "u8",
}  # fmt: skip
SHOWN_GRADIENTS = 5
_KEPT = {"INP201": "kept", "INP202": "called", "INP204": "saved by recomputation"}
_HAPPENED = {
    "INP103": "changed after the forward pass had used it",
    "INP104": "is a leaf that requires grad and was written in place",
    "INP105": "is a view that autograd does not let be written in place",
    "INP201": "was kept on ctx and changed before backward read it",
    "INP202": "was written by a Function's forward that did not mark it dirty, and used afterwards",
    "INP203": "is a gradient that was overwritten while others share it",
    "INP204": "changed before the checkpoint ran its function again",
    "INP205": "was kept by saved-tensor hooks as an alias and overwritten",
    "INP206": "was declared frozen and was written",
}


def shape_text(tensor: TensorInfo) -> str:
    """``f32[8, 64]``: dtype and shape in the notation of torch's own graph dumps."""
    return f"{_SHORT_DTYPES.get(tensor.dtype, tensor.dtype)}[{', '.join(map(str, tensor.shape))}]"


def subject(tensor: TensorInfo) -> str:
    """The tensor as a report calls it: its name, if it has one, and its dtype and shape."""
    if tensor.dtype == "unknown":
        return tensor.name or "a tensor"
    return f"{tensor.name} {shape_text(tensor)}" if tensor.name else f"a tensor {shape_text(tensor)}"


def headline(finding: Finding) -> str:
    """One line: rule, tensor, what happened, how bad."""
    return (
        f"{finding.code} {finding.rule.name}: {subject(finding.tensor)} {_what(finding)}{_how_bad(finding)}"
    )


def _what(finding: Finding) -> str:
    divergence = finding.divergence
    if divergence is not None and finding.code == "INP301":
        operator = f"; {divergence.operator} is the first operator to differ" if divergence.operator else ""
        return f"differs on {divergence.device} by more than rounding explains{operator}"
    if divergence is not None:
        return f"was overwritten after autograd had saved it, on {divergence.device} only"
    return _HAPPENED.get(finding.code, "was overwritten after autograd had saved it")


def _how_bad(finding: Finding) -> str:
    if finding.state == "latent":
        effect = (
            "raise an error" if finding.version_now != finding.version_saved else "compute wrong gradients"
        )
        return f"; backward never ran over it, and would {effect}"
    if finding.gradients:
        off = f", {percent(finding.relative_error)} off" if finding.relative_error is not None else ""
        wrong = f"{len(finding.gradients)} of {finding.gradients_total} gradients"
        if finding.raised:
            return f"; PyTorch refused, else {wrong} would have been wrong{off}"
        return f"; {wrong} are wrong{off}"
    if finding.gradients_judged and finding.raised:
        return "; PyTorch refused, though the gradients would have been right"
    return ""


def percent(ratio: float) -> str:
    """A relative error for reading: ``8.8%``, ``0.031%``, ``12x``."""
    if ratio >= 10:
        return f"{ratio:.3g}x"
    return f"{100 * ratio:.2g}%" if ratio < 0.1 else f"{100 * ratio:.0f}%"


def report(finding: Finding) -> str:
    """The whole finding: headline, the three places, and the facts."""
    parts = [headline(finding), ""]
    for verb, site in places(finding):
        parts += [f"{site.path}:{site.line}: {verb} in {site.function}", *excerpt(site)]
    return "\n".join([*parts, "", *facts(finding)])


def places(finding: Finding) -> list[tuple[str, Site]]:
    """What happened where, in the order in which it happened."""
    found = []
    if finding.saved is not None:
        if finding.code == "INP301":
            found.append((f"{finding.saved.op} differs", finding.saved))
        else:
            operation = f" for {finding.saved.op}" if finding.saved.op else ""
            found.append((f"{_KEPT.get(finding.code, 'saved')}{operation}", finding.saved))
    if finding.modified is not None:
        found.append(
            ("overwritten" if finding.code not in ("INP104", "INP105") else "refused", finding.modified)
        )
    if finding.used is not None:
        found.append(("compared" if finding.code == "INP301" else "used by backward", finding.used))
    return found


def excerpt(site: Site, marker: str = ">   ") -> list[str]:
    """The source line and, where Python knows the columns, the expression underlined."""
    if site.source is None:
        where = "made at run time" if site.path.startswith("<") else "not to be read, or changed since"
        return [f"{marker}(the source is {where})"]
    text = site.source.expandtabs(1)
    code = text.lstrip()
    lines = [marker + code]
    if site.column is not None and site.end_column is not None:
        indent = len(text) - len(code)
        start, end = site.column - indent, min(site.end_column - indent, len(code))
        if end > start >= 0 and end - start < len(code):
            lines.append(" " * (len(marker) + start) + "^" * (end - start))
    return lines


def facts(finding: Finding) -> list[str]:
    """Versions, values, gradients, further tensors, advice: everything but the places."""
    lines: list[str] = []
    lines += _version_lines(finding)
    if finding.divergence is not None:
        lines += _divergence_lines(finding.divergence)
    if finding.values is not None:
        lines += _value_lines(finding.values)
    lines += _gradient_lines(finding)
    if finding.occurrences > 1 and finding.modified is not None:
        lines.append(f"{finding.occurrences} saves in this test were overwritten by this line")
    for other in finding.also[:3]:
        where = f", saved at {other.saved.path}:{other.saved.line}" if other.saved else ""
        lines.append(f"it also overwrote {subject(other.tensor)}{where}")
    if len(finding.also) > 3:
        lines.append(f"... and {len(finding.also) - 3} more tensors")
    if finding.modified is None and finding.used is not None and finding.code not in ("INP104", "INP301"):
        lines.append(f"changed before {finding.used.path}:{finding.used.line}")
    if finding.process:
        lines.append(f"in the child process: {finding.process}")
    if finding.note:
        lines.append(f"note: {finding.note}")
    if finding.fix:
        lines.append(f"instead: {finding.fix}")
    return lines


def _divergence_lines(divergence: Divergence) -> list[str]:
    """How far off, by which bound, and the operator that is the first to differ."""
    if divergence.bound == "findings":
        return []
    lines = [f"first compared value that differs: {divergence.point}"]
    if divergence.error is not None and divergence.allowed is not None:
        lines.append(
            f"off by {divergence.error:.3g} from double precision, rounding explains {divergence.allowed:.3g}"
        )
    else:
        lines.append(f"compared by: {divergence.bound}")
    if divergence.others:
        lines.append(f"{divergence.others} more compared values differ")
    if divergence.operator is not None:
        lines.append(
            f"{divergence.operator}({', '.join(divergence.inputs)}) in {divergence.phase} "
            f"{divergence.output}, from the same inputs; CPU -> {divergence.device}:"
        )
    elif divergence.device != "cpu":
        lines.append("no single operator differs by more than rounding, among those that could be repeated")
    if not divergence.deterministic:
        lines.append(f"two runs on {divergence.device} differ: it is not deterministic there")
    return lines


def _version_lines(finding: Finding) -> list[str]:
    if finding.version_saved is None or finding.version_now is None:
        return []
    versions = f"version {finding.version_saved} -> {finding.version_now}"
    if finding.version_saved == finding.version_now:
        return [f"{versions}: PyTorch's own check does not see this write"]
    if finding.code >= "INP200":
        return [f"{versions}: PyTorch does not check the version here"]
    return [f"{versions}: PyTorch refuses to use it in backward"]


def _value_lines(diff: ValueDiff) -> list[str]:
    if not diff.changed:
        return [f"values: all {diff.total} elements are what they were"]
    share = 100 * diff.changed / diff.total if diff.total else 100
    greatest = "not finite" if diff.max_abs is None else f"{diff.max_abs:.6g}"
    lines = [f"values changed: {diff.changed} / {diff.total} ({share:.1f}%), greatest difference {greatest}"]
    indices = [str(list(change.index)) for change in diff.largest]
    index_width = max(map(len, indices), default=0)
    before_width = max((len(change.before) for change in diff.largest), default=0)
    after_width = max((len(change.after) for change in diff.largest), default=0)
    for index, change in zip(indices, diff.largest, strict=True):
        lines.append(
            f"    {index:<{index_width}}  {change.before:>{before_width}} -> {change.after:>{after_width}}"
        )
    if diff.changed > len(diff.largest):
        lines.append(f"    ... and {diff.changed - len(diff.largest)} more")
    return lines


def _gradient_lines(finding: Finding) -> list[str]:
    if not finding.gradients:
        return []
    total = f" of {finding.gradients_total}" if finding.gradients_total else ""
    off = f", {percent(finding.relative_error)} off overall" if finding.relative_error is not None else ""
    lines = [f"gradients, right -> computed: {len(finding.gradients)}{total} wrong{off}"]
    shown = finding.gradients[:SHOWN_GRADIENTS]
    names = [f"{g.name} [{', '.join(map(str, g.shape))}]" for g in shown]
    width = max(map(len, names))
    lines += [f"    {name:<{width}}  {_gradient(g)}" for name, g in zip(names, shown, strict=True)]
    if len(finding.gradients) > len(shown):
        lines.append(f"    ... and {len(finding.gradients) - len(shown)} more")
    return lines


def _gradient(error: GradientError) -> str:
    parts = [f"max abs {_number(error.max_abs):>9}", f"max rel {_number(error.max_rel):>9}"]
    if error.cosine is not None:
        parts.append(f"cosine {error.cosine:7.4f}")
    if error.right and error.computed:
        parts.append(f"worst element {error.right[0]} -> {error.computed[0]}")
    return "  ".join(parts)


def _number(value: float | None) -> str:
    return "-" if value is None or not math.isfinite(value) else f"{value:.3g}"
