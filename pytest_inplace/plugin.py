"""The pytest side: hooks only. Loading it imports neither torch nor the engine."""

from __future__ import annotations

import sys
import unittest
from collections.abc import Generator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_inplace.session import baselines, options, support
from pytest_inplace.session.checking import ItemCheck, PytestInplaceWarning

if sys.version_info < (3, 11):
    from exceptiongroup import BaseExceptionGroup  # which pytest requires there

if TYPE_CHECKING:
    from pytest_inplace.session.fixture import Inplace

_SKIPS = (pytest.skip.Exception, unittest.SkipTest)
_STOPS = (pytest.exit.Exception, KeyboardInterrupt)

_LOOKS: dict[str, dict[str, bool]] = {
    "place": {"bold": True}, "error": {"red": True}, "warning": {"yellow": True}, "plain": {},
}  # fmt: skip

_settings = pytest.StashKey[options.Settings]()
_baseline = pytest.StashKey[baselines.BaselineOfRun | None]()
_check = pytest.StashKey[ItemCheck]()


def pytest_addoption(parser: pytest.Parser) -> None:
    options.add_options(parser)


def pytest_addhooks(pluginmanager: pytest.PytestPluginManager) -> None:
    from pytest_inplace.session import hookspecs

    pluginmanager.add_hookspecs(hookspecs)


def pytest_cmdline_main(config: pytest.Config) -> int | None:
    rule = config.getoption("inplace_explain")
    if rule is None:
        return None
    from pytest_inplace.session.explain import explain

    print(explain(rule))
    return 0


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", options.marker_help())
    settings = config.stash[_settings] = options.resolve(config)
    config.stash[_baseline] = baselines.load(config, settings, config.rootpath)
    if not hasattr(config, "workerinput"):
        config.pluginmanager.register(MainProcess(config), "inplace_main")
        if config.getoption("inplace_suggest") or config.getoption("inplace_apply"):
            _suggest(config)


def _suggest(config: pytest.Config) -> None:
    from pytest_inplace.session.suggestions import Suggestions, require_libcst

    apply = config.getoption("inplace_apply")
    require_libcst("--inplace-apply" if apply else "--inplace-suggest")
    config.pluginmanager.register(Suggestions(config, apply), "inplace_suggest")


def pytest_report_header(config: pytest.Config) -> list[str] | None:
    settings = config.stash[_settings]
    if not options.active(settings):
        return None
    return [line for line in (options.header(settings), support.untested(config)) if line is not None]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Tell a marker with wrong arguments before any test runs; an xdist worker has no way to."""
    if not hasattr(config, "workerinput"):
        for item in items:
            options.for_item(item, config.stash[_settings])


@pytest.fixture
def inplace(request: pytest.FixtureRequest) -> Inplace:
    """The check that watches this test for in-place operations that corrupt gradients.

    allow(reason): accept the writes in a block. raises(rule): a block must produce a finding.
    check(): judge everything saved so far, now. frozen(*tensors_or_modules): nothing in a block
    may write them. findings: what was found so far. Using it turns the check on for the test.
    """
    from pytest_inplace.session.fixture import Inplace

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
    settings = options.for_item(item, item.config.stash[_settings])  # now, for hooks may add markers
    if not settings.check:
        return (yield)
    check = item.stash[_check] = ItemCheck(item, settings, item.config.stash[_baseline])
    try:
        check.begin()
    except Exception as error:
        check.failed(error)
    return (yield from _phase(item, "setup"))


def _forget(item: pytest.Item) -> None:
    if _check in item.stash:
        del item.stash[_check]


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Generator[None, Any, Any]:
    item = getattr(request, "_pyfuncitem", None)
    check = item.stash.get(_check, None) if isinstance(item, pytest.Item) else None
    if check is None:
        return (yield)
    with check.setting_up(fixturedef.scope == "function"):
        return (yield)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, Any, Any]:
    return (yield from _phase(item, "call"))


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> Generator[None, Any, Any]:
    check = item.stash.get(_check, None)
    if check is None:
        return (yield)
    try:
        if nextitem is None or item.parent not in nextitem.listchain():
            check.tear_down_early()
            _conclude(check, "teardown", None)
        return (yield from _phase(item, "teardown"))
    finally:
        _end(check)


def _phase(item: pytest.Item, when: str) -> Generator[None, Any, Any]:
    """Let one phase run, then judge it."""
    __tracebackhide__ = True
    check = item.stash.get(_check, None)
    if check is None:
        return (yield)
    try:
        try:
            check.running = True
            earlier = check.torn_down() if when == "teardown" else None
            with check.phase(when):
                result = yield from _with_earlier(earlier)
        except _SKIPS:
            check.skipped()
            raise
        except _STOPS:
            raise
        except BaseException as error:
            check.running = False
            _conclude(check, when, error)
            raise
        check.running = False
        kept = _unittest_failure(item) if when == "call" else None
        if isinstance(kept, _SKIPS):
            check.skipped()
            return result
        _conclude(check, when, kept)
        failing = check.failing.get(when)
        if failing and kept is None:
            from pytest_inplace.engine.guard import InplaceError

            raise InplaceError(failing)
        return result
    except _STOPS:  # pytest runs no tear-down after these
        _end(check)
        raise


def _with_earlier(earlier: BaseException | None) -> Generator[None, Any, Any]:
    """The phase, raising also what was raised before it, as pytest raises several of one tear-down."""
    __tracebackhide__ = True
    if earlier is None:
        return (yield)
    try:
        yield
    except Exception as error:
        raise BaseExceptionGroup("errors during test teardown", [error, earlier]) from None
    raise earlier


def _end(check: ItemCheck) -> None:
    try:
        check.end()
    except Exception as error:
        check.failed(error)


def _conclude(check: ItemCheck, when: str, error: BaseException | None) -> None:
    try:
        if when != "setup" or error is not None:  # a set-up that passed is judged with its test
            check.conclude(when, error)
    except PytestInplaceWarning:  # turned into an error by the user's filters
        raise
    except Exception as trouble:
        check.failed(trouble)


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
    if check is not None and check.running:  # the report of a part of the test, which goes on
        if call.excinfo is not None:
            check.told.append(call.excinfo.value)
    elif check is not None:
        from pytest_inplace.engine.guard import InplaceError
        from pytest_inplace.session import reporting

        root = item.config.rootpath
        findings = [reporting.relative(f, root) for f in check.failing.get(call.when, ())]
        if findings and report.failed:
            style = item.config.getoption("tbstyle", "auto")
            if call.excinfo is not None and isinstance(call.excinfo.value, InplaceError):
                report.longrepr = reporting.representation(findings, item.nodeid, style)
            elif style != "line":
                report.longrepr = reporting.attach(report.longrepr, findings, item.nodeid)
        reporting.add_html_extras(report, item.config, findings, check.settings.html)
        if call.when == "teardown" and not check.is_skipped:
            everything = [reporting.relative(f, root) for f in check.findings]
            reporting.add_junit_properties(report, item.config, everything)
            reporting.attach_record(
                report,
                reporting.record(item.nodeid, everything, check.coverage, check.trouble, check.parity_record),
            )
        if call.when == "teardown":
            _forget(item)
    return report


class MainProcess:
    """What happens once for the whole run: records come together, the summary and the files are written."""

    def __init__(self, config: pytest.Config) -> None:
        from pytest_inplace.session.reporting import Collected

        self._config = config
        self._collected = Collected()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = getattr(report, "inplace", None)
        if data is not None:
            self._collected.add(data)
            self._config.hook.pytest_inplace_checked(config=self._config, record=data)

    @pytest.hookimpl(optionalhook=True)
    def pytest_configure_node(self, node: Any) -> None:
        """Send the baseline to a worker of pytest-xdist, which may see no such file."""
        baseline = self._config.stash[_baseline]
        if baseline is not None:
            node.workerinput[baselines.WORKER_KEY] = baseline.dumps()

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, exitstatus: int) -> None:
        self._collected.conclude(
            self._config.stash[_settings],
            self._config.stash[_baseline],
            self._config.rootpath,
            exitstatus in (pytest.ExitCode.INTERRUPTED, pytest.ExitCode.INTERNAL_ERROR),
        )

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        lines = self._collected.summary(self._config.get_verbosity("inplace"))
        if lines:
            terminalreporter.section("inplace")
            for line in lines:
                for text, look in line:
                    terminalreporter.write(text, **_LOOKS[look])
                terminalreporter.line("")
