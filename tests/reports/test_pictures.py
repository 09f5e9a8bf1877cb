"""Pictures of tensors: the right cells, for any rank, size and value; small always."""

from __future__ import annotations

import math

import pytest
import torch

from pytest_inplace.engine import values
from pytest_inplace.engine.pictures import BINS, CELLS
from pytest_inplace.reports import pictures
from pytest_inplace.reports.pictures import HeatMap, Histogram

INF, NAN = math.inf, math.nan


def heat(before: torch.Tensor, after: torch.Tensor) -> HeatMap:
    found = values.difference(before, after).heat
    assert found is not None
    assert pictures.heat_map(pictures.heat_map_json(found)) == found
    return found


def changed(shape: tuple[int, ...], *changes: tuple[tuple[int, ...], float]) -> HeatMap:
    before = torch.zeros(shape)
    after = before.clone()
    for index, value in changes:
        after[index] = value
    return heat(before, after)


def test_levels_are_square_roots_of_the_greatest() -> None:
    found = changed((2, 3), ((0, 0), 81.0), ((0, 1), -1.0), ((1, 2), 0.001))
    assert found == HeatMap(1, 2, 3, (1, 1), ("910", "001"))


def test_not_finite_and_signed_zero() -> None:
    before = torch.tensor([0.0, 1.0, NAN, NAN, 0.0, INF])
    after = torch.tensor([-0.0, NAN, NAN, 1.0, INF, INF])
    assert heat(before, after).cells == ("1!0!!0",)
    assert heat(torch.tensor([0.0]), torch.tensor([-0.0])).cells == ("1",)


@pytest.mark.parametrize(
    ("shape", "index", "layout"),
    [
        ((), (), (None, 1, 1)),
        ((7,), (6,), (None, 1, 7)),
        ((1000,), (999,), (None, 32, 32)),
        ((64, 24), (63, 23), (1, 64, 24)),
        ((64, 3, 3, 3), (63, 2, 2, 2), (1, 64, 27)),
        ((2, 3, 4, 5, 6), (1, 2, 3, 4, 5), (3, 24, 30)),
        ((1, 1, 500), (0, 0, 499), (None, 22, 23)),
        ((3000, 1), (2999, 0), (None, 55, 55)),
        ((3000, 2), (2999, 1), (1, 3000, 2)),
    ],
)
def test_the_last_element_is_in_the_last_cell_whatever_the_rank(
    shape: tuple[int, ...], index: tuple[int, ...], layout: tuple[int | None, int, int]
) -> None:
    found = changed(shape, (index, 1.0))
    assert (found.row_dims, found.rows, found.columns) == layout
    last = math.prod(shape) - 1
    (height, width), columns = found.cell, found.columns
    assert found.cells[last // columns // height][last % columns // width] == "9"
    assert "".join(found.cells).count("9") == 1
    assert len(found.cells) <= CELLS
    assert all(len(row) == len(found.cells[0]) <= CELLS for row in found.cells)
    assert found.cell[0] * len(found.cells) >= found.rows
    assert found.cell[1] * len(found.cells[0]) >= found.columns


def test_every_element_falls_into_the_cell_that_the_scale_says() -> None:
    shape = (50, 31)
    for row, column in [(0, 0), (17, 5), (49, 30), (24, 30), (49, 0)]:
        found = changed(shape, ((row, column), 1.0))
        height, width = found.cell
        hit = [(y, x) for y, line in enumerate(found.cells) for x, c in enumerate(line) if c == "9"]
        assert hit == [(row // height, column // width)]


def test_a_cell_shows_the_greatest_change_in_it() -> None:
    found = changed((48, 48), ((0, 0), 1.0), ((0, 1), 81.0), ((47, 47), 9.0))
    assert found.cell == (2, 2)
    assert (found.cells[0][0], found.cells[-1][-1]) == ("9", "3")


@pytest.mark.parametrize("dtype", [torch.bool, torch.uint8, torch.int64, torch.bfloat16, torch.complex64])
def test_any_dtype(dtype: torch.dtype) -> None:
    assert heat(torch.zeros(3).to(dtype), torch.tensor([0.0, 1.0, 0.0]).to(dtype)).cells == ("090",)


def test_there_is_no_map_where_nothing_changed_or_is_there() -> None:
    assert values.difference(torch.ones(3), torch.ones(3)).heat is None
    assert values.difference(torch.ones(0), torch.ones(0)).heat is None
    assert values.difference(torch.ones(3), torch.ones(4)).heat is None


def histogram(right: list[float], computed: list[float]) -> Histogram | None:
    error = values.gradient_error("w", torch.tensor(right), torch.tensor(computed), picture=True)
    assert error is not None
    assert pictures.histogram(pictures.histogram_json(error.histogram)) == error.histogram
    return error.histogram


def test_histogram_counts_every_element_once_in_common_bins() -> None:
    found = histogram([0.0, 1.0, 2.0, 2.0], [0.0, 0.0, 10.0, NAN])
    assert found is not None
    assert (found.low, found.high, found.not_finite) == (0.0, 10.0, (0, 1))
    assert (sum(found.right), sum(found.computed)) == (4, 3)
    assert (found.right[0], found.right[2], found.right[4]) == (1, 1, 2)
    assert (found.computed[0], found.computed[-1]) == (2, 1)
    assert len(found.right) == len(found.computed) == BINS


def test_histograms_of_one_value_and_of_none() -> None:
    same = histogram([2.0, 2.0], [2.0, NAN])
    assert same is not None
    assert same.low < 2 < same.high
    assert sum(same.right) == 2
    assert histogram([NAN], [INF]) is None
    assert histogram([1.0], [INF]) is not None


def test_complex_gradients_have_no_histogram() -> None:
    error = values.gradient_error("w", torch.ones(2) * 1j, torch.zeros(2) * 1j, picture=True)
    assert error is not None
    assert error.histogram is None


def test_a_large_tensor_costs_little() -> None:
    """At most what the comparison itself costs, twice."""
    import time

    before, after = torch.zeros(1 << 21), torch.ones(1 << 21)
    start = time.perf_counter()
    found = heat(before, after)
    assert time.perf_counter() - start < 5
    assert len("".join(found.cells)) <= CELLS * CELLS
