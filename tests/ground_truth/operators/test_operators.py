"""Every operator of PyTorch's own database, under every kind of write: the engine agrees with plain PyTorch.

By default a fixed subset of the operators; all of them with PYTEST_INPLACE_EXHAUSTIVE=1.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from .cases import QUICK
from .compare import check_operator, find_examine

if TYPE_CHECKING:
    from .programs import Gradients

SHOWN = 40
HOW_TO = "python -m tests.ground_truth.operators --case ID"


def _names() -> list[str]:
    if os.environ.get("PYTEST_INPLACE_EXHAUSTIVE", "0") in ("", "0"):
        return list(QUICK)
    from .programs import operators

    return sorted(operators())


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "operator" in metafunc.fixturenames:
        metafunc.parametrize("operator", _names())


def test_verdicts_agree_with_plain_pytorch(operator: str) -> None:
    pytest.importorskip("torch.testing._internal.common_methods_invocations")
    from .programs import operators

    if operator not in operators():
        pytest.skip("not in this PyTorch's operator database")
    report = check_operator(operator, find_examine())
    if not report.cases:
        pytest.skip("; ".join(sorted({item.reason for item in report.excluded})))
    if report.disagreements:
        lines = [str(found) for found in report.disagreements[:SHOWN]]
        more = len(report.disagreements) - len(lines)
        head = f"{len(report.disagreements)} disagreements in {report.cases} cases (see one with {HOW_TO}):"
        pytest.fail("\n".join([head, *lines, *([f"and {more} more"] if more else [])]), pytrace=False)


def test_second_derivatives_are_those_of_plain_pytorch(operator: str) -> None:
    pytest.importorskip("torch.testing._internal.common_methods_invocations")
    from .labels import Outcome
    from .programs import operators, quietly
    from .second import cases, differences

    if operator not in operators():
        pytest.skip("not in this PyTorch's operator database")
    examine = find_examine()

    def checked(run: Callable[[], Gradients]) -> Outcome:
        with quietly():
            found = examine(run)
        return Outcome(found.result, found.error)

    different = [text for case in cases(operator) for text in differences(case, checked)]
    assert not different, "\n".join(different)
