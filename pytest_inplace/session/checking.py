"""One test under the sentinel: begun before set-up, concluded after each phase, ended after tear-down."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
import time
import warnings
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from pytest_inplace.reports.findings import Coverage, Finding, Site
from pytest_inplace.reports.parity import ParityRecord
from pytest_inplace.session import companions, progress, replay_limit, support
from pytest_inplace.session.options import Settings
from pytest_inplace.session.parity import ItemParity
from pytest_inplace.session.verdicts import is_confirmed_by, moot

if TYPE_CHECKING:
    from pytest_inplace.session.baselines import BaselineOfRun


class PytestInplaceWarning(pytest.PytestWarning):
    """A latent finding under ``--inplace-latent=warn``, or what is right on the CPU by luck."""


class ItemCheck:
    """The state of one checked test between its phases."""

    def __init__(self, item: pytest.Item, settings: Settings, baseline: BaselineOfRun | None = None) -> None:
        self.item = item
        self.settings = settings
        self.baseline = baseline
        self.findings: list[Finding] = []
        self.failing: dict[str, list[Finding]] = {}
        self.coverage = Coverage()
        self.trouble: str | None = None
        self.lens: Any = None
        self._watch: Any = None
        self._ledger: Any = None
        self._before: Any = None
        self._torn_down: Any = None
        self._has_begun = False
        """Whether something of its own ran, after the set-up of what surrounds it."""
        self.parity: ItemParity | None = None
        self.running = False
        self.is_skipped = False
        self._began = 0.0
        self.told: list[BaseException] = []
        """Errors that pytest reported while the test went on, as those of subtests."""

    # -- begin and end ------------------------------------------------------------------------------

    def begin(self) -> None:
        """Start watching, now if torch is imported, else as soon as the test imports it."""
        from pytest_inplace.reports import call_sites

        self._began = time.monotonic()
        call_sites.add_user_root(str(self.item.config.rootpath))
        if "torch" in sys.modules:
            self._start()
        else:
            from pytest_inplace.engine.late_import import when_torch_is_imported

            when_torch_is_imported(self._guarded_start)

    def _guarded_start(self) -> None:
        try:
            self._start()
        except Exception as error:
            self.failed(error)

    def _start(self) -> None:
        from pytest_inplace.engine.ledger import Ledger
        from pytest_inplace.engine.watch import Watch
        from pytest_inplace.session.process_state import Began, ProcessState

        self._before = Began(ProcessState.capture(), names=companions.globals_of_doctest(self.item))
        if "inplace" in getattr(self.item, "fixturenames", ()):
            # The fixture answers questions about values while the test runs, so they are kept.
            from pytest_inplace.engine.microscope import Microscope

            self.lens = Microscope(None, lines=False)
            self._ledger = self.lens.ledger
            self.lens.start()
        else:
            self._ledger = Ledger()
            # Where a second run names the lines, the first need not look for the user's among the frames.
            self._watch = Watch(self._ledger, walk=self.settings.replay == "never")
            self._watch.start()
        if self.settings.parity is not None:
            self.parity = ItemParity(self.item, self.settings.parity)
            self.parity.start()
        self.coverage = self._ledger.coverage

    def end(self) -> None:
        """Stop watching; what is saved and unused is looked at once more."""
        from pytest_inplace.engine.late_import import forget

        forget(self._guarded_start)
        if self.parity is not None:
            self.parity.stop()
        watching = self._watching
        if watching is not None:
            watching.stop()
            watching.children.collect()
            watching.children.close()
            self.coverage.add(watching.children.total())

    @property
    def _watching(self) -> Any:
        return self.lens or self._watch

    def failed(self, error: BaseException) -> None:
        """The check itself failed: the test goes on, unchecked, and the reason is reported."""
        self.trouble = f"{type(error).__name__}: {error}".splitlines()[0]

    def skipped(self) -> None:
        """The test skipped itself: whatever it did so far is no claim of its."""
        self.is_skipped = True
        if self.parity is not None:
            self.parity.stop()
        if self._ledger is not None:
            self._ledger.take_suspects()
            self._ledger.acknowledge()

    def tear_down_early(self) -> None:
        """Tear the test's own fixtures down, while what surrounds it is there for a second run."""
        if support.no_second_runs() is not None:
            return
        from pytest_inplace.session.rerun import tear_down

        if self.item in self.item.session._setupstate.stack:
            self._torn_down = tear_down(self.item)

    def torn_down(self) -> BaseException | None:
        """Tell what an early tear-down wrote; the result is what it raised. To be called in its phase."""
        torn, self._torn_down = self._torn_down, None
        if torn is None:
            return None
        torn.tell()
        error: BaseException | None = torn.error
        return error

    @contextlib.contextmanager
    def setting_up(self, for_this_test_only: bool) -> Iterator[None]:
        """Around the set-up of one fixture. A second run of the test does not set the wider ones up again."""
        if for_this_test_only:
            self._has_begun = True
            yield
            return
        ledger = self._ledger
        with contextlib.nullcontext() if ledger is None else ledger.beyond():
            yield
        if not self._has_begun:
            self._begins()

    def _begins(self) -> None:
        from pytest_inplace.session.process_state import ProcessState

        if self._before is not None:
            self._before.state = ProcessState.capture()

    def _calls(self) -> None:
        from pytest_inplace.engine.rng import RandomStates

        if self._before is not None:
            self._before.call = RandomStates.capture()

    def phase(self, when: str) -> contextlib.AbstractContextManager[None]:
        """Around a phase: takes down what the test itself begins with, after the hooks of other plugins."""
        if when == "setup" and support.no_second_runs() is None:
            return companions.called_first(self.item.session._setupstate, "setup", self._begins)
        if when == "call":
            return companions.called_first(self.item, "runtest", self._calls)
        return contextlib.nullcontext()

    # -- conclusions --------------------------------------------------------------------------------

    def conclude(self, when: str, error: BaseException | None) -> list[Finding]:
        """Judge what came up until the end of this phase; the result is what should fail the test."""
        if self._ledger is None:
            return []
        from pytest_inplace.engine.guard import native

        if when == "call" and error is None:
            self._ledger.drop_unused()
        suspects = self._suspects(error)
        children = self._of_children(error)
        findings = self._judge(suspects, when, children) if suspects or children else []
        findings += self._frozen(error)
        if self.parity is not None:
            findings += self._compare(when, error, findings)
        if error is not None and "torch" in sys.modules:
            findings += native(error)
        findings = [f for f in findings if not self._allowed(f) and not moot(f, error)]
        if not findings:
            return []
        self.item.ihook.pytest_inplace_modify_findings(item=self.item, findings=findings)
        findings = [f for f in findings if f.state == "confirmed" or self.settings.latent != "ignore"]
        if self.baseline is not None:
            findings = self.baseline.accept(self.item, findings, error)
        findings = self._not_told_yet(findings)
        failing = []
        for finding in findings:
            if finding.accepted:
                continue
            if finding.state == "latent" and self.settings.latent == "warn":
                _warn(self.item, finding)
            else:
                failing.append(finding)
        if failing:
            self.failing.setdefault(when, []).extend(failing)
        return failing

    def _not_told_yet(self, findings: list[Finding]) -> list[Finding]:
        """Take these in; where one confirms a latent one of an earlier phase, it only takes its place."""
        fresh = []
        for finding in findings:
            earlier = [i for i, known in enumerate(self.findings) if is_confirmed_by(known, finding)]
            if earlier:
                self.findings[earlier[0]] = finding
            else:
                self.findings.append(finding)
                fresh.append(finding)
        return fresh

    def _allowed(self, finding: Finding) -> bool:
        if finding.code in self.settings.allow:
            return True
        if not self.settings.paths or finding.modified is None:
            return False
        from pytest_inplace.session.reporting import relative

        site = relative(finding, self.item.config.rootpath).modified
        return site is not None and self.settings.accepted_at(finding.code, site.path)

    def _suspects(self, error: BaseException | None) -> list[Any]:
        from pytest_inplace.engine.guard import InplaceError, chain, pending
        from pytest_inplace.engine.replay import code_of

        told, self.told = self.told, []
        suspects = pending(self._ledger.take_suspects(), error, *told)
        if error is not None or self.settings.latent == "ignore":
            # A test that stopped half-way left graphs unused for a reason of its own.
            suspects = [s for s in suspects if not s.latent]
        for each in chain(error):
            if isinstance(each, InplaceError):
                suspects += each.suspects
        return [s for s in suspects if code_of(s) not in self.settings.allow]

    def _of_children(self, error: BaseException | None) -> list[Finding]:
        """What child processes have found; if the test has passed, it has dealt with their errors."""
        found: list[Finding] = self._watching.children.collect()
        kept = [f for f in found if f.raised is None or error is not None]
        if error is not None or self.settings.latent == "ignore":
            kept = [f for f in kept if f.state == "confirmed"]
        return [f for f in kept if not self._allowed(f)]

    def _judge(self, suspects: Iterable[Any], when: str, children: list[Finding]) -> list[Finding]:
        from pytest_inplace.engine.replay import findings_of, unreplayed

        why = self._no_replay(when) or self._too_long()
        if why is None and not companions.can_replay_now(self.item):
            why = "not replayed: what surrounds the test was already torn down"
        if why is None:
            self.tear_down_early()  # watched, as it would be in its own phase
            if companions.timed_out(self.item):
                why = "not replayed: its timeout has ended the test"
                self.coverage.not_checked("a second run: the timeout had ended the test")
        if why is not None:
            children = [dataclasses.replace(f, note=why) for f in children]
            if self.lens is not None:
                return [*findings_of(self.lens, suspects, why), *children]
            return [*unreplayed(suspects, why), *children]
        return [f for f in self._replay(suspects, children) if f.code != "INP206"]

    def _frozen(self, error: BaseException | None) -> list[Finding]:
        """What was declared frozen and written, unless the test has dealt with the error itself."""
        from pytest_inplace.engine.guard import InplaceError, chain

        raised = [each for each in chain(error) if isinstance(each, InplaceError)]
        findings = [f for each in raised for f in each.findings if f.code == "INP206"]
        if not findings:
            return []
        why = self._no_replay("call") or self._too_long()
        if why is None and companions.can_replay_now(self.item):
            again = [f for f in self._replay(()) if f.code == "INP206"]
            if [f.tensor for f in again] == [f.tensor for f in findings]:
                return again
            why = "the second run of the test did not show it again"
        return [dataclasses.replace(f, note=why) for f in findings]

    def _replay(self, suspects: Iterable[Any], children: Iterable[Finding] = ()) -> list[Finding]:
        from pytest_inplace.engine.deadline import Deadline
        from pytest_inplace.session.rerun import replay_item

        took, limit = time.monotonic() - self._began, self.settings.replay_limit
        deadline = Deadline(replay_limit.seconds(took, limit))
        cut = replay_limit.cut(took, limit)
        self.tear_down_early()  # watched, as it would be in its own phase
        self._pause()
        progress.say(self.item, self._began)
        try:
            return replay_item(self.item, self._before, suspects, children, deadline, cut, self.coverage)
        finally:
            self._resume()
            if deadline.passed:
                self.coverage.not_checked(cut)

    @property
    def parity_record(self) -> ParityRecord | None:
        """What came of the test on another device, if that was asked for."""
        return None if self.parity is None else self.parity.record

    def _compare(self, when: str, error: BaseException | None, findings: list[Finding]) -> list[Finding]:
        """What another device makes of a test that is right on the CPU."""
        assert self.parity is not None
        if error is not None or findings:
            self.parity.not_compared("it fails on the CPU")
            self.parity.stop()
        elif when == "call":
            why = self._no_replay(when)
            if why is None and not companions.can_replay_now(self.item):
                why = "what surrounds the test was already torn down"
            if why is not None:
                self.parity.not_compared(why)
                return []
            self.tear_down_early()
            self._pause()
            try:
                found = self.parity.compare(self._before)
            finally:
                self._resume()
            for text, site in self.parity.hazards:
                _warn_at(self.item, f"on {self.parity.device}: {text}", site)
            return found
        return []

    def _too_long(self) -> str | None:
        """Why there is no second run after such a long first one; what that leaves unknown is counted."""
        why = replay_limit.skipped(time.monotonic() - self._began, self.settings.replay_limit)
        if why is not None:
            self.coverage.not_checked(
                f"a second run: over --inplace-replay-limit={self.settings.replay_limit:g}"
            )
        return why

    def _no_replay(self, when: str) -> str | None:
        if self.settings.replay != "never":
            lacking = support.no_second_runs() or companions.unstoppable(self.item)
            if lacking is not None:
                self.coverage.not_checked(f"a second run: {lacking}")
            return None if lacking is None else f"not replayed: {lacking}"
        return f"not replayed: {self.settings.replay_off_because or 'off by --inplace-replay=never'}"

    def _pause(self) -> None:
        self._watching.pause()

    def _resume(self) -> None:
        self._watching.resume()


def _warn(item: pytest.Item, finding: Finding) -> None:
    from pytest_inplace.reports.rendering import headline

    _warn_at(item, headline(finding), finding.modified or finding.saved)


def _warn_at(item: pytest.Item, text: str, site: Site | None) -> None:
    path, line = (site.path, site.line) if site is not None else (str(item.path), 1)
    warnings.warn_explicit(PytestInplaceWarning(text), None, path, line)
