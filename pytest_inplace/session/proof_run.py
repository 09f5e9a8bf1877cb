"""The plugin of the processes in which suggested changes are tried: records, and compares, a test's course.

Loaded with ``-p``. The environment says what to do: ``meant`` runs the unedited test with all backward passes
corrected and keeps its course in a file; ``edited`` runs the edited test, checked as usual, and compares.
"""

from __future__ import annotations

import dataclasses
import json
import os
import random
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from pytest_inplace.session import options

VARIABLE = "PYTEST_INPLACE_PROOF"


class ProofRun:
    """One test's course, recorded during its call."""

    def __init__(self, mode: str, course: Path, answer: Path) -> None:
        self._meant = mode == "meant"
        self._course_file = course
        self._answer_file = answer
        self._answer: dict[str, Any] = {}

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        import numpy
        import torch

        # What no seed of the test's own fixes is to be the same in every run.
        random.seed(0)
        numpy.random.seed(0)
        torch.manual_seed(torch.initial_seed())

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_call(self, item: pytest.Item) -> Generator[None, Any, Any]:
        from pytest_inplace.engine.proof import Corrective, CourseRecorder

        recorder = CourseRecorder()
        lens = Corrective() if self._meant else None
        recorder.lens = lens
        recorder.start()
        if lens is not None:
            lens.start()
        try:
            return (yield)
        finally:
            if lens is not None:
                lens.stop()
            recorder.stop()
            self._conclude(recorder.course)

    def _conclude(self, course: Any) -> None:
        import torch

        from pytest_inplace.engine.proof import Course, difference

        if self._meant:
            torch.save(vars(course), self._course_file)
            self._answer = {"corrected": course.corrected, "backwards": len(course.backwards)}
        else:
            meant = Course(**torch.load(self._course_file, weights_only=True))
            self._answer = {"difference": difference(meant, course)}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            self._answer["outcome"] = report.outcome
            crash = getattr(report.longrepr, "reprcrash", None)
            self._answer["message"] = getattr(crash, "message", None)

    def pytest_sessionfinish(self) -> None:
        self._answer_file.write_text(json.dumps(self._answer), encoding="utf-8")


def pytest_configure(config: pytest.Config) -> None:
    task = json.loads(os.environ[VARIABLE])
    if task["mode"] == "meant":
        # The lens that corrects takes the place of the check.
        plain = options.for_item
        options.for_item = lambda item, settings: dataclasses.replace(plain(item, settings), check=False)
    run = ProofRun(task["mode"], Path(task["course"]), Path(task["answer"]))
    config.pluginmanager.register(run, "inplace_proof")
