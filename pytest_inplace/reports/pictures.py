"""Small pictures of large tensors, as data: where elements changed, how gradients are distributed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

NO_ELEMENT, UNCHANGED, NOT_FINITE = ".", "0", "!"


@dataclass(frozen=True)
class HeatMap:
    """The changes of a tensor of any rank on a grid of at most 24 by 24 cells.

    The tensor is laid out as a matrix of ``rows`` by ``columns`` elements: its first ``row_dims`` dimensions
    are the rows, or, with ``None``, it is a vector and folded into rows. A cell stands for ``cell`` elements,
    rows by columns, and shows the greatest change among them: ``"0"`` none, ``"1"`` to ``"9"`` up to the
    greatest of all, by its square root, ``"!"`` to or from a value that is not finite, ``"."`` no element.
    """

    row_dims: int | None
    rows: int
    columns: int
    cell: tuple[int, int]
    cells: tuple[str, ...]


@dataclass(frozen=True)
class Histogram:
    """How many elements of the right and of the computed gradient lie in each of equally wide bins.

    ``not_finite`` counts those that lie in none.
    """

    low: float
    high: float
    right: tuple[int, ...]
    computed: tuple[int, ...]
    not_finite: tuple[int, int] = (0, 0)


def heat_map_json(heat: HeatMap | None) -> dict[str, Any] | None:
    if heat is None:
        return None
    return {
        "row_dims": heat.row_dims,
        "rows": heat.rows,
        "columns": heat.columns,
        "cell": list(heat.cell),
        "cells": list(heat.cells),
    }


def histogram_json(histogram: Histogram | None) -> dict[str, Any] | None:
    if histogram is None:
        return None
    return {
        "low": histogram.low,
        "high": histogram.high,
        "right": list(histogram.right),
        "computed": list(histogram.computed),
        "not_finite": list(histogram.not_finite),
    }


def heat_map(data: dict[str, Any] | None) -> HeatMap | None:
    """The inverse of :func:`heat_map_json`."""
    if data is None:
        return None
    cell = data["cell"][0], data["cell"][1]
    return HeatMap(data["row_dims"], data["rows"], data["columns"], cell, tuple(data["cells"]))


def histogram(data: dict[str, Any] | None) -> Histogram | None:
    """The inverse of :func:`histogram_json`."""
    if data is None:
        return None
    outside = data["not_finite"][0], data["not_finite"][1]
    return Histogram(data["low"], data["high"], tuple(data["right"]), tuple(data["computed"]), outside)
