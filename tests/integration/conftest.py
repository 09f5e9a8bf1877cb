"""The ``check`` fixture runs a test file under the plugin, in this process wherever torch's state permits."""

from __future__ import annotations

import concurrent.futures.thread  # noqa: F401 - see numpy.random below
import importlib
import importlib.util
import linecache
import pkgutil
import sys
from collections.abc import Callable, Iterator

import numpy.random  # noqa: F401 - pytester forgets modules that an inner run imports first, torch cannot be reloaded
import pytest
import torch

import pytest_inplace
from pytest_inplace.engine.releases import top_of_hooks as top_hooks
from tests.integration.support import HEAD, Run, read_json

for _module in pkgutil.walk_packages(pytest_inplace.__path__, "pytest_inplace."):
    importlib.import_module(_module.name)
if importlib.util.find_spec("hypothesis") is not None:
    importlib.import_module("hypothesis")  # its plugin loads it in every run, which takes a second

Check = Callable[..., Run]


@pytest.fixture(autouse=True)
def plain_surroundings(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """An outer run's own options and workers are none of the inner run's business."""
    for name in (
        "CI",  # where pytest prints whole summary lines
        "BUILD_NUMBER",
        "PYTEST_ADDOPTS",
        "PYTEST_XDIST_WORKER",
        "PYTEST_XDIST_WORKER_COUNT",
        "PYTEST_XDIST_TESTRUNUID",
    ):
        monkeypatch.delenv(name, raising=False)
    if "pytester" in request.fixturenames:
        request.getfixturevalue("pytester")  # which deletes what is set before it
    # Installed neighbours have tests of their own; here they would only shuffle and warn.
    monkeypatch.setenv("PYTEST_ADDOPTS", "-p no:randomly -p no:asyncio -p no:benchmark")


@pytest.fixture(autouse=True)
def nothing_left_behind() -> Iterator[None]:
    """Whatever an inner run did, the plugin leaves no hook, no patch and no tracer in the process."""
    from pytest_inplace.engine import late_import, watch

    engine, trace, finders = torch.autograd._engine_run_backward, sys.gettrace(), list(sys.meta_path)
    yield
    hooks, active = top_hooks(), list(watch._active)
    # Cleared first: one test that leaves something must not fail all that follow.
    while top_hooks() is not None:
        torch._C._autograd._pop_saved_tensors_default_hooks()
    watch._active.clear()
    left_engine, torch.autograd._engine_run_backward = torch.autograd._engine_run_backward, engine
    left_finders = [f for f in sys.meta_path if f not in finders and f is late_import._finder]
    assert hooks is None, "saved-tensor hooks were left on"
    assert active == [], "a watch was left running"
    assert left_engine is engine, "torch.autograd was left patched"
    assert sys.gettrace() is trace, "a tracer was left on"
    assert left_finders == [], "an import hook was left in sys.meta_path"


@pytest.fixture
def check(pytester: pytest.Pytester) -> Check:
    """Run a test file with ``--inplace-check`` (unless ``flag=False``) and give its outcome and records."""

    def run(source: str, *args: str, conftest: str | None = None, flag: bool = True, head: str = HEAD) -> Run:
        path = pytester.makepyfile(test_it=head + source)
        linecache.clearcache()  # the file may have been another one a moment ago
        if conftest is not None:
            pytester.makeconftest(conftest)
        report = pytester.path / "report.json"
        options = ["--inplace-check"] if flag else []
        result = pytester.runpytest_inprocess(str(path.name), f"--inplace-json={report}", *options, *args)
        return Run(result, read_json(report) if report.exists() and report.stat().st_size else {"tests": []})

    return run


@pytest.fixture
def plain(pytester: pytest.Pytester) -> Callable[..., pytest.RunResult]:
    """Run the test file that ``check`` wrote (or any other) without the plugin."""

    def run(*args: str) -> pytest.RunResult:
        return pytester.runpytest_inprocess("-p", "no:inplace", *(args or ("test_it.py",)))

    return run
