"""What a test does in other threads is checked, too, or counted as not checked."""

from __future__ import annotations

import sys
import threading
from typing import TYPE_CHECKING

import pytest

from tests.integration.support import CLEAN, SILENT, VERSION, VERSION_WORDS, Run, function, line_of

if TYPE_CHECKING:
    from collections.abc import Callable

    Check = Callable[..., Run]

IN_A_THREAD = """
def run(work):
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
"""
SUBCLASS = """
def run(work):
    class Own(threading.Thread):
        def run(self):
            work()
    thread = Own()
    thread.start()
    thread.join()
"""
RAW = """
def run(work):
    done = threading.Event()
    def both():
        work()
        done.set()
    _thread.start_new_thread(both, ())
    done.wait()
"""
POOL = """
def run(work):
    with ThreadPoolExecutor(2) as pool:
        pool.submit(work).result()
"""
OLD_POOL = """
pool = ThreadPoolExecutor(1)
pool.submit(int).result()
def run(work):
    pool.submit(work).result()
"""
THREAD_POOL = """
def run(work):
    with multiprocessing.pool.ThreadPool(2) as pool:
        pool.apply(work)
"""
ASYNCIO = """
def run(work):
    asyncio.run(asyncio.to_thread(work))
"""
IMPORTS = """
import _thread
import asyncio
import multiprocessing.pool
import queue
import threading
import time
from concurrent.futures import ThreadPoolExecutor
"""
WAYS = {
    "Thread": IN_A_THREAD,
    "subclass": SUBCLASS,
    "_thread": RAW,
    "ThreadPoolExecutor": POOL,
    "a pool from before": OLD_POOL,
    "ThreadPool": THREAD_POOL,
    "asyncio.to_thread": ASYNCIO,
}
ways = pytest.mark.parametrize("way", WAYS)


@ways
def test_a_silent_write_is_found_with_its_line(check: Check, pytester: pytest.Pytester, way: str) -> None:
    source = IMPORTS + WAYS[way] + function("work", SILENT) + "\ndef test_it():\n    run(work)\n"
    run = check(source)
    run.outcomes(failed=1)
    finding = run.finding()
    assert finding["code"] == "INP102"
    assert finding["replayed"]
    assert finding["modified"]["line"] == line_of(pytester.path / "test_it.py", "# the write")
    assert finding["modified"]["exact"]
    assert finding["used"]["line"] == line_of(pytester.path / "test_it.py", "# the use")
    assert finding["gradients"][0]["max_rel"] == pytest.approx(1.0)
    assert run.record()["coverage"] == {
        "saved": 1,
        "content_checked": 1,
        "version_only": 0,
        "not_checked": {},
    }


@ways
def test_a_right_program_stays_clean(check: Check, way: str) -> None:
    run = check(IMPORTS + WAYS[way] + function("work", CLEAN) + "\ndef test_it():\n    run(work)\n")
    run.outcomes(passed=1)
    assert run.record()["coverage"]["saved"] == 1


def test_the_version_error_is_raised_in_the_thread(check: Check) -> None:
    source = (
        IMPORTS
        + IN_A_THREAD
        + function("work", VERSION)
        + f"""
errors = []
def expecting():
    try:
        work()
    except RuntimeError as error:
        errors.append(str(error))
def test_it():
    run(expecting)
    assert {VERSION_WORDS!r} in errors[0]
    assert "is at version 1; expected version 0" in errors[0]
"""
    )
    run = check(source)
    run.outcomes(passed=1)
    assert run.verdict() == "clean"


def test_forward_write_and_backward_in_three_threads(check: Check, pytester: pytest.Pytester) -> None:
    body = """
w = torch.ones(3, requires_grad=True)
kept = []
run(lambda: kept.append(w.exp()))
run(lambda: kept[0].data.mul_(2))  # the write
run(lambda: kept[0].sum().backward())
"""
    run = check(IMPORTS + IN_A_THREAD + function("test_it", body))
    run.outcomes(failed=1)
    finding = run.finding()
    assert finding["modified"]["line"] == line_of(pytester.path / "test_it.py", "# the write")
    assert finding["gradients_judged"]


def test_threads_at_the_same_time_are_numbered_apart(check: Check) -> None:
    """The second run must find the bad save again, however the threads' saves come after one another."""
    body = """
barrier = threading.Barrier(3)
def work(factor):
    barrier.wait()
    for step in range(30):
        w = torch.ones(3, requires_grad=True)
        h = w.exp()
        if step == 7:
            h.data.mul_(factor)
        h.sum().backward()
threads = [threading.Thread(target=work, args=(factor,)) for factor in (1, 2, 1)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
    run = check(IMPORTS + function("test_it", body))
    run.outcomes(failed=1)
    finding = run.finding()
    assert (finding["code"], finding["replayed"], finding["occurrences"]) == ("INP102", True, 1)
    assert finding["gradients_judged"]
    assert run.record()["coverage"]["saved"] == 90


def test_a_write_that_several_threads_may_have_made_is_not_called_exact(check: Check) -> None:
    body = """
thread = threading.Thread(target=lambda: time.sleep(2))  # it may be anything that takes long
thread.start()
w = torch.ones(3, requires_grad=True)
h = w.exp()
h.data.mul_(2)
h.sum().backward()
thread.join()
"""
    run = check(IMPORTS + function("test_it", body))
    finding = run.finding()
    assert not finding["modified"]["exact"]
    assert "several threads ran" in finding["note"]


def test_a_thread_from_before_is_counted(check: Check) -> None:
    source = (
        IMPORTS
        + """
tasks, done = queue.Queue(), queue.Queue()
def serve():
    while (task := tasks.get()) is not None:
        done.put(task())
threading.Thread(target=serve, daemon=True).start()
"""
        + function("work", SILENT)
        + """
def test_it():
    tasks.put(work)
    done.get()
def test_stop():
    tasks.put(None)
"""
    )
    run = check(source)
    run.outcomes(passed=2)
    assert run.record("test_it")["coverage"]["not_checked"] == {
        "a backward pass in a thread that was there before the test": 1
    }
    assert run.record("test_stop")["coverage"]["not_checked"] == {}


def test_a_thread_that_outlives_the_test_is_counted(check: Check) -> None:
    source = (
        IMPORTS
        + """
go, over = threading.Event(), threading.Event()
def work():
    w = torch.ones(3, requires_grad=True)
    h = w.exp()
    over.set()
    go.wait()
    h.sum().backward()
def test_it():
    thread = threading.Thread(target=work)
    thread.start()
    over.wait()
    globals()["thread"] = thread
def test_after():
    go.set()
    thread.join()
"""
    )
    run = check(source)
    run.outcomes(passed=2)
    assert run.record("test_it")["coverage"]["not_checked"] == {
        "the end of a thread that outlived the test": 1
    }


def test_an_error_in_a_thread_is_told_once(check: Check, plain: Callable[..., pytest.RunResult]) -> None:
    """The second run's threads fail as the first run's did; pytest warns of those only."""
    source = (
        IMPORTS
        + IN_A_THREAD
        + function("work", SILENT + "raise ValueError('mine')")
        + """
def test_it():
    run(work)
"""
    )
    run = check(source, "-p", "no:unraisableexception")
    assert run.codes() == ["INP102"]
    assert run.text.count("ValueError: mine") == plain("-p", "no:unraisableexception").stdout.str().count(
        "ValueError: mine"
    )


def test_nothing_stays_in_a_pool_that_lives_on(check: Check) -> None:
    """The hooks of a work item end with it, so that an unchecked test runs without any."""
    source = (
        IMPORTS
        + OLD_POOL
        + function("work", CLEAN)
        + """
from pytest_inplace.engine.releases import top_of_hooks
def test_it():
    run(work)
@pytest.mark.inplace_safe(check=False)
def test_after():
    assert pool.submit(top_of_hooks).result() is None
"""
    )
    check(source).outcomes(passed=2)


def test_patches_are_taken_out(check: Check) -> None:
    originals = (threading.Thread._bootstrap_inner, sys.modules["_thread"].start_new_thread)  # type: ignore[attr-defined]
    check(IMPORTS + IN_A_THREAD + function("work", SILENT) + "\ndef test_it():\n    run(work)\n")
    assert (threading.Thread._bootstrap_inner, sys.modules["_thread"].start_new_thread) == originals  # type: ignore[attr-defined]
    assert threading.gettrace() is None


def test_the_fixture_sees_threads(check: Check) -> None:
    body = """
with inplace.raises("INP102"):
    run(work)
with inplace.allow(reason="on purpose"):
    run(work)
"""
    source = IMPORTS + IN_A_THREAD + function("work", SILENT) + function("test_it", body, "inplace")
    check(source).outcomes(passed=1)
