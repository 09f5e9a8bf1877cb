"""The keys of the JSON report, read off the code that writes it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pytest_inplace.reports.findings import (
    Change,
    Coverage,
    Finding,
    GradientError,
    OtherTensor,
    Site,
    TensorInfo,
    ValueDiff,
)
from pytest_inplace.reports.parity import Divergence, ParityRecord
from pytest_inplace.reports.pictures import HeatMap, Histogram
from pytest_inplace.session.reporting import record

_TEXTS = {
    "schema": "version of this format",
    "torch": "version of torch, if it is installed",
    "pytest_inplace": "version of this plugin",
    "tests": "one record for each checked test, by node id; clean ones, too",
    "tests[].verdict": "`clean`, `finding` or `unchecked`",
    "tests[].coverage.saved": "tensors that autograd saved",
    "tests[].coverage.content_checked": "of these, compared by content",
    "tests[].coverage.version_only": "of these, compared by version only",
    "tests[].coverage.not_checked": "a reason -> how often something was not checked for it",
    "tests[].reason": "why the test is `unchecked`",
    "tests[].parity": "the comparison with another device, under `--inplace-parity`",
    "tests[].parity.verdict": "`agrees`, `differs`, `not portable` or `not compared`",
    "tests[].parity.reason": "why it is not portable or not compared",
    "tests[].parity.points": "values that were compared",
    "tests[].parity.equal": "of these, equal bit for bit",
    "tests[].parity.left_out": "values that were not kept",
    "tests[].parity.bound": "how a difference was judged",
    "tests[].parity.runs": "how often the test ran again",
    "tests[].parity.nondeterministic": "values that differ between two runs on the device",
    "tests[].parity.hazards": "operations that are right on the CPU by luck",
    "tests[].findings[].code": "the rule, as `INP102`",
    "tests[].findings[].rule": "the rule's name",
    "tests[].findings[].state": "`confirmed` or `latent`",
    "tests[].findings[].tensor.name": "a name that the tensor has in the program",
    "tests[].findings[].tensor.leaf": "whether it is a leaf of the graph",
    "tests[].findings[].saved": "where autograd saved the tensor",
    "tests[].findings[].saved.op": "the node of the graph that saved it",
    "tests[].findings[].saved.columns": "of the expression, from 0, as [start, end]",
    "tests[].findings[].modified": "where it was overwritten",
    "tests[].findings[].modified.exact": "whether this is the very line that wrote",
    "tests[].findings[].used": "where a backward pass used it",
    "tests[].findings[].version": "the version counter, when saved and now",
    "tests[].findings[].values": "how the content changed",
    "tests[].findings[].values.max_abs": "greatest difference of an element; `null` if not finite",
    "tests[].findings[].values.largest": "the elements that changed most",
    "tests[].findings[].values.heat": "where elements changed, on a grid of 24 by 24 cells or less",
    "tests[].findings[].values.heat.row_dims": "dimensions that make the rows; `null`: a folded vector",
    "tests[].findings[].values.heat.rows": "of the tensor as a matrix",
    "tests[].findings[].values.heat.cell": "elements in a cell, as [rows, columns]",
    "tests[].findings[].values.heat.cells": "greatest change in each, `0` to `9`; `!`: not finite",
    "tests[].findings[].gradients": "leaves with wrong gradients; g is the computed one, r the right one",
    "tests[].findings[].gradients[].max_abs": "max abs(g - r)",
    "tests[].findings[].gradients[].max_rel": "max abs(g - r) / max abs(r)",
    "tests[].findings[].gradients[].cosine": "of the angle between g and r",
    "tests[].findings[].gradients[].right": "elements of r, the worst first",
    "tests[].findings[].gradients[].computed": "the same elements of g",
    "tests[].findings[].gradients[].histogram": "elements in 20 bins, for the worst three only",
    "tests[].findings[].gradients[].histogram.not_finite": "elements in no bin, of r and g",
    "tests[].findings[].gradients_judged": "whether the gradients could be compared",
    "tests[].findings[].gradients_total": "how many gradients were compared",
    "tests[].findings[].relative_error": "norm(g - r) / norm(r) over all leaves together",
    "tests[].findings[].raised": "PyTorch's own error about it",
    "tests[].findings[].replayed": "whether a second run showed it again",
    "tests[].findings[].occurrences": "how often the line did it",
    "tests[].findings[].also": "further tensors that the same line overwrote, up to 50",
    "tests[].findings[].fix": "what to write instead",
    "tests[].findings[].accepted": "`baseline` if the baseline accepts it",
    "tests[].findings[].note": "what is not known, and why",
    "tests[].findings[].divergence": "of INP301 and INP302: how the devices part",
    "tests[].findings[].divergence.point": "the first compared value that differs",
    "tests[].findings[].divergence.error": "its distance to double precision, on the device",
    "tests[].findings[].divergence.allowed": "the distance that rounding explains",
    "tests[].findings[].divergence.operator": "the first operator that differs, from the same inputs",
    "tests[].findings[].divergence.phase": "`forward` or `backward`",
    "tests[].findings[].divergence.deterministic": "whether two runs on the device agree",
    "tests[].findings[].divergence.others": "how many more compared values differ",
}  # fmt: skip


def rows() -> Iterator[tuple[str, str, str]]:
    """Each key with its path, its type in JSON, and what it means where that is not plain."""
    for path, value in _walk(example(), ""):
        yield path, _kind(value), _TEXTS.get(path, "")


def example() -> dict[str, Any]:
    """A report with every key, of one finding that has everything."""
    site = Site("tests/test_a.py", 3, "test_a", "h += x", 0, 6, "SigmoidBackward0")
    tensor = TensorInfo("h", (2,), "float32")
    finding = Finding(
        code="INP101", state="confirmed", tensor=tensor, saved=site, modified=site, modified_exact=True,
        used=site, version_saved=0, version_now=1,
        values=ValueDiff(1, 2, 0.5, (Change((0,), "1", "1.5"),), HeatMap(None, 1, 2, (1, 1), ("90",))),
        gradients=(GradientError("w", (2,), 0.5, 0.5, 0.9, ("1",), ("1.5",), Histogram(1, 2, (1,), (1,))),),
        relative_error=0.5, raised="...", also=(OtherTensor(tensor, site),), fix="...", note="...",
        divergence=Divergence(
            "cuda", "the loss", "double precision", 1.0, 0.1, "aten.gelu", "forward", ("f32[2]",), "..."
        ),
    )  # fmt: skip
    parity = ParityRecord("cuda", "differs", "...", 2, 1, 0, "double precision", 1, ("the loss",), ("...",))
    test = record("tests/test_a.py::test_a", [finding], Coverage(reasons={"a reason": 1}), "...", parity)
    return {"schema": 1, "torch": "2.13.0", "pytest_inplace": "0.1.0", "tests": [test]}


def _walk(value: Any, path: str) -> Iterator[tuple[str, Any]]:
    if path:
        yield path, value
    if isinstance(value, dict) and not path.endswith("not_checked"):
        for key, inner in value.items():
            yield from _walk(inner, f"{path}.{key}" if path else key)
    elif isinstance(value, list) and value and isinstance(value[0], dict):
        for inner_path, inner in _walk(value[0], f"{path}[]"):
            if inner_path != f"{path}[]":
                yield inner_path, inner


def _kind(value: Any) -> str:
    for kind, name in (
        (bool, "boolean"),
        (int, "integer"),
        (float, "number"),
        (str, "string"),
        (dict, "object"),
    ):
        if isinstance(value, kind):
            return name
    if isinstance(value, list):
        return f"list of {_kind(value[0])}s" if value else "list"
    return "or null"
