"""What other plugins do around a test, so that its second run is neither late nor counted twice."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

import pytest


@contextlib.contextmanager
def called_first(owner: Any, name: str, first: Callable[[], None]) -> Iterator[None]:
    """Call ``first`` right before the method ``name`` of ``owner`` runs.

    Hooks of other plugins, which seed random numbers for example, may run between a hook of ours and that.
    """
    method = getattr(owner, name)
    had = name in vars(owner)

    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        first()
        return method(*args, **kwargs)

    setattr(owner, name, call)
    try:
        yield
    finally:
        if vars(owner).get(name) is call:  # nobody has put another one there meanwhile
            if had:
                setattr(owner, name, method)
            else:
                delattr(owner, name)


def can_replay_now(item: pytest.Item) -> bool:
    """Whether everything around the test (module, class, session) is still set up."""
    chain = item.listchain()
    return list(item.session._setupstate.stack)[: len(chain) - 1] == chain[:-1]


def _clock(item: pytest.Item) -> Any:
    """The plugin of pytest-timeout, if its clock runs for this test."""
    running = getattr(item, "cancel_timeout", None) is not None
    return item.config.pluginmanager.getplugin("timeout") if running else None


def unstoppable(item: pytest.Item) -> str | None:
    """Why the clock of pytest-timeout, which may end the whole run, cannot be stopped for a second run."""
    plugin, hooks = _clock(item), item.config.hook
    needed = "pytest_timeout_cancel_timer", "pytest_timeout_set_timer"
    if plugin is None or (
        hasattr(plugin, "_get_item_settings") and all(hasattr(hooks, name) for name in needed)
    ):
        return None
    return "the clock of this pytest-timeout cannot be stopped"


@contextlib.contextmanager
def no_timeout(item: pytest.Item) -> Iterator[None]:
    """Stop the clock of pytest-timeout, which measures the test and not its second run."""
    plugin = _clock(item)
    hooks: Any = item.config.hook
    if plugin is None or unstoppable(item) is not None:
        yield
        return
    settings = plugin._get_item_settings(item)
    timer = getattr(signal, "ITIMER_REAL", None)
    left = signal.getitimer(timer)[0] if timer is not None else 0.0
    hooks.pytest_timeout_cancel_timer(item=item)
    try:
        yield
    finally:
        hooks.pytest_timeout_set_timer(item=item, settings=settings)
        if timer is not None and left and signal.getitimer(timer)[0]:
            signal.setitimer(timer, left)


def timed_out(item: pytest.Item) -> bool:
    """Whether pytest-timeout has ended the test, so that a second run would never end."""
    plugin = _clock(item)
    if plugin is None or unstoppable(item) is not None or not hasattr(signal, "ITIMER_REAL"):
        return False
    if getattr(plugin._get_item_settings(item), "method", None) != "signal":
        return False
    handler = signal.getsignal(signal.SIGALRM)
    ours = getattr(handler, "__module__", None) == "pytest_timeout"
    return ours and signal.getitimer(signal.ITIMER_REAL)[0] == 0


@contextlib.contextmanager
def benchmarks_kept(item: pytest.Item) -> Iterator[None]:
    """Leave out of pytest-benchmark's table what a second run measured."""
    benchmarks = getattr(getattr(item.config, "_benchmarksession", None), "benchmarks", None)
    if not isinstance(benchmarks, list):
        yield
        return
    kept = list(benchmarks)
    try:
        yield
    finally:
        benchmarks[:] = kept


def globals_of_doctest(item: pytest.Item) -> dict[str, Any] | None:
    """The names that a doctest begins with. Running it takes them away from it."""
    names = getattr(getattr(item, "dtest", None), "globs", None)
    return dict(names) if isinstance(names, dict) else None
