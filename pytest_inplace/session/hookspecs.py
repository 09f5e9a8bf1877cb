"""Hooks with which a project can veto, rewrite or consume findings (in a conftest.py or a plugin)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from pytest_inplace.reports.findings import Finding


@pytest.hookspec()
def pytest_inplace_modify_findings(item: pytest.Item, findings: list[Finding]) -> None:
    """Called with the findings of one phase of a test, before they decide its outcome.

    Change the list in place: remove a finding to accept it, or put a
    ``dataclasses.replace(finding, ...)`` in its stead to rewrite it.

    :param item: the test.
    :param findings: what was found, in the order in which the tensors were saved.
    """


@pytest.hookspec()
def pytest_inplace_checked(config: pytest.Config, record: dict[str, Any]) -> None:
    """Called once for each checked test, in the main process, when its last phase has been reported.

    :param config: the configuration of the main process.
    :param record: the test's record as ``--inplace-json`` has it.
    """
