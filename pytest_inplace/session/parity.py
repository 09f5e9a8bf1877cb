"""One test's run on another device: recorded beside its first run, and compared when that has passed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_inplace.reports.parity import ParityRecord

if TYPE_CHECKING:
    import pytest

    from pytest_inplace.reports.findings import Finding, Site
    from pytest_inplace.session.process_state import Began

LONGEST = 600.0
"""Seconds after which a run for the comparison is taken to hang."""


class ItemParity:
    """Records a test from :meth:`start`, and compares it with runs on ``device``."""

    def __init__(self, item: pytest.Item, device: str) -> None:
        self.device = device
        self.record: ParityRecord | None = None
        self._item = item
        self._recorder: Any = None
        self.hazards: list[tuple[str, Site | None]] = []

    def start(self) -> None:
        from pytest_inplace.parity.recording import Recorder

        self._recorder = Recorder()
        self._recorder.start()

    def stop(self) -> None:
        if self._recorder is not None:
            self._recorder.stop()

    def not_compared(self, reason: str) -> None:
        """The CPU's run decides alone, for this reason."""
        if self.record is None:
            self.record = ParityRecord(self.device, "not compared", reason)

    def compare(self, before: Began) -> list[Finding]:
        """Run the test again, on the device and as often as the comparison takes."""
        from pytest_inplace.engine.deadline import Deadline
        from pytest_inplace.parity.judging import Comparison
        from pytest_inplace.session.rerun import run_again

        self.stop()

        def again(context: Any) -> BaseException | None:
            def inside(run: Any) -> BaseException | None:
                with context:
                    error: BaseException | None = run()
                return error

            deadline = Deadline(LONGEST)
            error = run_again(self._item, before, inside, deadline)
            if deadline.passed:
                raise TimeoutError(f"a run for the comparison was broken off after {LONGEST:.0f} s")
            return error

        asks = "inplace" in getattr(self._item, "fixturenames", ())
        comparison = Comparison(again, self._recorder, self.device, asks)
        try:
            self.record = comparison.result()
        except Exception as error:  # a device that breaks must not break the run
            self.not_compared(f"{type(error).__name__}: {error}".splitlines()[0])
        self.hazards = comparison.hazards
        return comparison.findings
