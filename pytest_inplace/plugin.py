"""The pytest side: hooks only. Loading it imports neither torch nor the engine."""

from __future__ import annotations

from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_inplace import options
from pytest_inplace.checking import ItemCheck

if TYPE_CHECKING:
    from pytest_inplace.fixture import Inplace

_settings = pytest.StashKey[options.Settings]()
_item_settings = pytest.StashKey[options.Settings]()
_check = pytest.StashKey[ItemCheck]()


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    from pytest_inplace import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", options.marker_help())
    config.stash[_settings] = options.resolve(config)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(MainProcess(config), "inplace_main")


def pytest_report_header(config: pytest.Config) -> str | None:
    settings = config.stash[_settings]
    return options.header(settings) if options.active(settings) else None


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        item.stash[_item_settings] = options.for_item(item, config.stash[_settings])


@pytest.fixture
def inplace(request: pytest.FixtureRequest) -> Inplace:
    """The check that watches this test for in-place operations that corrupt gradients.

    allow(reason): accept the writes in a block. raises(rule): a block must produce a finding.
    check(): judge everything saved so far, now. frozen(*tensors_or_modules): nothing in a block
    may write them. findings: what was found so far. Using it turns the check on for the test.
    """
    from pytest_inplace.fixture import Inplace

    item = request.node
    if "inplace" not in item.fixturenames:
        raise pytest.UsageError(f"{item.nodeid}: request the fixture 'inplace' as an argument of the test")
    if _check not in item.stash:
        raise pytest.UsageError(
            f"{item.nodeid}: the fixture 'inplace' needs the check that inplace_safe(check=False) turned off"
        )
    return Inplace(item)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, Any, Any]:
    _forget(item)
    settings = item.stash.get(_item_settings, None) or options.for_item(item, item.config.stash[_settings])
    if not settings.check:
        return (yield)
    check = item.stash[_check] = ItemCheck(item, settings)
    try:
        check.begin()
    except Exception as error:
        check.failed(error)
    return (yield from _phase(item, "setup"))


def _forget(item: pytest.Item) -> None:
    if _check in item.stash:
        del item.stash[_check]


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from _phase(item, "call"))


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, Any, Any]:
    check = item.stash.get(_check, None)
    if check is None:
        return (yield)
    try:
        result = yield from _phase(item, "teardown", check.torn_down)
    finally:
        try:
            check.end()
        except Exception as error:
            check.failed(error)
    return result


def _phase(item: pytest.Item, when: str, earlier: BaseException | None = None) -> Generator[None, Any, Any]:
    """Let one phase run, then judge it; ``earlier`` is an error that belongs to it and was met before."""
    __tracebackhide__ = True
    check = item.stash.get(_check, None)
    if check is None:
        return (yield)
    try:
        result = yield
        if earlier is not None:
            raise earlier
    except BaseException as error:
        if isinstance(error, Exception | pytest.fail.Exception):
            _conclude(check, when, error)
        raise
    failing = _conclude(check, when, _unittest_failure(item) if when == "call" else None)
    if failing and _unittest_failure(item) is None:
        from pytest_inplace.guarding import InplaceError

        raise InplaceError(failing)
    return result


def _conclude(check: ItemCheck, when: str, error: BaseException | None) -> list[Any]:
    try:
        # A set-up that passed is judged with the test that it was for.
        return [] if when == "setup" and error is None else check.conclude(when, error)
    except Exception as trouble:
        check.failed(trouble)
        return []


def _unittest_failure(item: pytest.Item) -> BaseException | None:
    """The failure of a unittest.TestCase method, which pytest keeps aside instead of raising it."""
    kept = getattr(item, "_excinfo", None)
    return kept[-1].value if kept else None


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    check = item.stash.get(_check, None)
    if check is not None:
        from pytest_inplace import reporting
        from pytest_inplace.guarding import InplaceError

        root = item.config.rootpath
        findings = [reporting.relative(f, root) for f in check.failing.get(call.when, ())]
        if findings and report.failed:
            style = item.config.getoption("tbstyle", "auto")
            if call.excinfo is not None and isinstance(call.excinfo.value, InplaceError):
                report.longrepr = reporting.representation(findings, item.nodeid, style)
            elif style != "line":
                report.longrepr = reporting.attach(report.longrepr, findings, item.nodeid)
        if call.when == "teardown":
            everything = [reporting.relative(f, root) for f in check.findings]
            reporting.attach_record(
                report, reporting.record(item.nodeid, everything, check.coverage, check.trouble)
            )
            _forget(item)
    return report


class MainProcess:
    """What happens once for the whole run: records come together, the summary and the files are written."""

    def __init__(self, config: pytest.Config) -> None:
        from pytest_inplace.reporting import Collected

        self._config = config
        self._collected = Collected()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = getattr(report, "inplace", None)
        if data is not None:
            self._collected.add(data)
            self._config.hook.pytest_inplace_checked(config=self._config, record=data)

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self) -> None:
        path = self._config.stash[_settings].json
        if path is None:
            return
        try:
            self._collected.write_json(path)
        except OSError as error:
            self._collected.problem = f"cannot write {path}: {error.strerror or error}"

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        lines = self._collected.summary()
        if lines:
            terminalreporter.section("inplace")
            for line in lines:
                terminalreporter.write_line(line)
