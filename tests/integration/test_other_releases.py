"""A neighbour of a release that nobody has tried: a line in the header, "not checked" where it must be."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Iterator

import pytest
import torch

from pytest_inplace.engine import coexist
from pytest_inplace.engine.releases import set_version, top_of_hooks
from pytest_inplace.session import support
from tests.integration.conftest import Check
from tests.integration.support import CLEAN, SILENT, function

BOTH = function("test_clean", CLEAN) + function("test_silent", SILENT)


@pytest.fixture(autouse=True)
def asked_anew() -> Iterator[None]:
    support.no_second_runs.cache_clear()
    yield
    support.no_second_runs.cache_clear()


@pytest.mark.parametrize(
    ("name", "version", "told"),
    [
        ("torch", "2.99.0", True),
        ("torch", "2.3.1+cpu", True),
        ("torch", "2.4.0", False),
        ("torch", "2.14.7.dev20270101", False),
        ("pytest", "10.0.0rc1", True),
        ("pytest-timeout", "7.0", True),
        ("pytest-nobody-knows", "1.0", False),
    ],
)
def test_the_header_names_it(
    check: Check, monkeypatch: pytest.MonkeyPatch, name: str, version: str, told: bool
) -> None:
    real = importlib.metadata.version
    versions = {"torch": "2.13.0", "pytest": "9.0.0", name: version}
    monkeypatch.setattr(importlib.metadata, "version", lambda of: versions.get(of) or real(of))
    text = check(function("test_it", CLEAN)).text
    lines = [line for line in text.splitlines() if line.startswith("inplace: not tested with")]
    assert [f"{name} {version}" in line for line in lines] == [True] * told


def test_nothing_is_said_where_the_check_is_off(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(support.TESTED, "torch", ("0.1", "0.2"))
    pytester.makepyfile(function("test_it", "pass"))
    assert "not tested with" not in pytester.runpytest_inprocess().stdout.str()


PARTS = [(name, part) for name, parts in support._PARTS.items() for part in parts if "." not in part]


@pytest.mark.parametrize(("module", "name"), PARTS)
def test_without_a_part_of_pytest_there_is_no_second_run(
    check: Check, monkeypatch: pytest.MonkeyPatch, module: str, name: str
) -> None:
    lacking = f"_has_not_{name}"
    monkeypatch.setitem(support._PARTS, module, (lacking,))
    assert not hasattr(importlib.import_module(module), lacking)
    run = check(BOTH)
    run.outcomes(passed=1, failed=1)
    assert run.codes("test_clean") == []
    finding = run.finding("test_silent")
    assert f"has no {module}.{lacking}" in finding["note"]
    assert not finding["replayed"]
    assert "a second run: pytest" in run.text


TIMEOUT = "--timeout=30", "--timeout-method=thread"


def test_a_timeout_that_cannot_be_stopped_lets_no_test_run_again(check: Check) -> None:
    pytest.importorskip("pytest_timeout")
    conftest = """
import pytest
@pytest.hookimpl(trylast=True)
def pytest_configure(config):
    plugin = config.pluginmanager.getplugin("timeout")
    class Other:
        def __getattr__(self, name):
            if name == "_get_item_settings":
                raise AttributeError(name)
            return getattr(plugin, name)
    get = config.pluginmanager.getplugin
    config.pluginmanager.getplugin = lambda name: Other() if name == "timeout" else get(name)
"""
    run = check(BOTH, *TIMEOUT, conftest=conftest)
    run.outcomes(passed=1, failed=1)
    assert "the clock of this pytest-timeout cannot be stopped" in run.finding("test_silent")["note"]


def test_a_benchmark_without_a_table_that_we_know(check: Check) -> None:
    pytest.importorskip("pytest_benchmark")
    conftest = """
def pytest_runtest_setup(item):
    session = getattr(item.config, "_benchmarksession", None)
    item.config._benchmarksession = None
"""
    check(BOTH, conftest=conftest).outcomes(passed=1, failed=1)


AUTOGRAD = [
    "_push_saved_tensors_default_hooks",
    "_get_sequence_nr",
    "_saved_tensors_hooks_get_disabled_error_message",
    "_saved_tensors_hooks_disable",
    "SavedTensor",
]


@pytest.mark.parametrize("name", AUTOGRAD)
def test_without_a_part_of_torch_nothing_is_checked_and_nothing_left_behind(
    check: Check, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    conftest = f"""
import pytest, torch
@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item):
    patch = pytest.MonkeyPatch()
    if "clean" in item.name or "silent" in item.name:
        patch.delattr(torch._C._autograd, {name!r})
    try:
        return (yield)
    finally:
        patch.undo()
"""
    source = BOTH + function("test_after", SILENT)
    run = check(source, conftest=conftest)
    run.outcomes(passed=2, failed=1)
    for test in ("test_clean", "test_silent"):
        assert run.verdict(test) == "unchecked"
        assert name in run.record(test)["reason"]
    assert run.codes("test_after") == ["INP102"]
    assert top_of_hooks() is None
    assert coexist._patched == []


def test_a_second_run_that_fails_leaves_the_test_unchecked(
    check: Check, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pytest_inplace.engine.microscope import Microscope

    def gone(*_: object) -> None:
        raise AttributeError("module 'torch.autograd' has no attribute '_engine_run_backward'")

    monkeypatch.setattr(Microscope, "start", gone)
    run = check(BOTH)
    run.outcomes(passed=2)
    assert run.verdict("test_silent") == "unchecked"
    assert "AttributeError: module" in run.record("test_silent")["reason"]


def test_a_version_is_set_by_either_signature(monkeypatch: pytest.MonkeyPatch) -> None:
    tensor = torch.ones(2)
    tensor.add_(1)
    set_version(tensor, 0)
    assert tensor._version == 0
    seen = []

    def one_at_a_time(of: object, version: object) -> None:
        if isinstance(of, tuple):
            raise TypeError
        seen.append(version)

    monkeypatch.setattr(torch._C._autograd, "_unsafe_set_version_counter", one_at_a_time)
    set_version(tensor, 3)
    assert seen == [3]
