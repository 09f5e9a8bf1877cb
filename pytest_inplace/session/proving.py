"""Try an edit of the user's source: in a copy of the project, in a process of its own."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_inplace.reports.edits import Change
from pytest_inplace.reports.findings import Finding
from pytest_inplace.session.project_copy import copied
from pytest_inplace.session.proof_run import VARIABLE
from pytest_inplace.session.trials import Trials

TIMEOUT = 300.0
NO_GRADIENTS = "with it the test passes and nothing is found, but there are no gradients to compare"
# Of the ini file's keys, those that write a file, accept a finding or run the test elsewhere.
_OFF = ("inplace_sarif", "inplace_html", "inplace_baseline", "inplace_parity")
_PASSED_ON = ("-p", "-o", "--override-ini", "-W", "--pythonwarnings", "--import-mode", "--asyncio-mode",
              "--strict-markers", "--strict-config", "--confcutdir")  # fmt: skip


class Untested(Exception):
    """A change could not be tried; the text says why."""


class Prover:
    """Proves changes for one finding of one test, against the course that the test was meant to take."""

    def __init__(
        self, config: pytest.Config, nodeid: str, finding: Finding, folder: Path, trials: Trials
    ) -> None:
        self._config = config
        self._nodeid = nodeid
        self._finding = finding
        self._folder = folder
        self._trials = trials
        self._course = self._folder / "course.pt"
        self._comparable = True

    def prepare(self) -> None:
        """Run the test as it is, with its backward passes corrected.

        Raises:
            Untested: if it does not do in a copy what it did here.
        """
        answer, _ = self._run("meant", None)
        if "backwards" not in answer:
            raise Untested(
                _first_line(answer.get("message")) or "the test does not run in a copy of the project"
            )
        saved = self._finding.saved
        places = {(os.path.realpath(path), line) for path, line in answer["corrected"]}
        inside = {line for path, line in places if Path(path).is_relative_to(self._folder.resolve())}
        self._comparable = bool(answer["backwards"] and places)
        if self._comparable and saved is not None and saved.line not in inside:
            raise Untested("the finding does not come up in a copy of the project")

    def prove(self, change: Change) -> str | None:
        """Why ``change`` is not proved, or ``None`` if it is.

        Raises:
            Untested: if it could not be tried.
        """
        answer, records = self._run("edited", change)
        if answer.get("outcome") != "passed":
            return f"the test does not pass: {_first_line(answer.get('message')) or answer.get('outcome')}"
        if [record["verdict"] for record in records] != ["clean"]:
            codes = sorted({f["code"] for record in records for f in record["findings"]})
            return f"the test still has {', '.join(codes)}" if codes else "the test could not be checked"
        difference: str | None = answer["difference"]
        return difference if self._comparable else NO_GRADIENTS

    # -- one run --------------------------------------------------------------------------------------

    def _run(self, mode: str, change: Change | None) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        answer, report = self._folder / "answer.json", self._folder / "report.json"
        for path in (answer, report):
            path.unlink(missing_ok=True)
        changed = {} if change is None else {change.path: change.after}
        with copied(self._config.rootpath, self._folder / "project", changed) as root:
            task = {"mode": mode, "course": str(self._course), "answer": str(answer)}
            trial = self._trials.run(
                self._arguments(root, report),
                self._inside(root, self._config.invocation_params.dir) or root,
                self._environment(root, task, change),
                TIMEOUT,
            )
        if trial.returncode is None:
            raise Untested(f"the test ran for more than {TIMEOUT:.0f} seconds")
        if not answer.is_file() or trial.returncode not in (0, 1):
            lines = trial.output.strip().splitlines() or ["no output"]
            raise Untested(f"the test does not run in a copy of the project: {lines[-1]}")
        records = json.loads(report.read_text("utf-8"))["tests"] if report.is_file() else []
        return json.loads(answer.read_text("utf-8")), records

    def _arguments(self, root: Path, report: Path) -> list[str]:
        ini = self._config.inipath
        inside = self._inside(root, ini) if ini is not None else None
        return [
            str(root / self._nodeid), f"--rootdir={root}",
            *(["-c", str(inside or ini)] if ini is not None else []),
            "-o", "addopts=", *self._switched_off(), *self._passed_on(),
            "-p", "no:cacheprovider", "-p", "no:xdist",
            "-p", "no:randomly", "-p", "pytest_inplace.session.proof_run",
            "--inplace-check", f"--inplace-json={report}",
        ]  # fmt: skip

    def _switched_off(self) -> list[str]:
        words = []
        for key in _OFF:
            with contextlib.suppress(ValueError):  # a key that this version does not have
                if self._config.getini(key):
                    words += ["-o", f"{key}="]
                    if key == "inplace_baseline":
                        words += ["-o", "inplace_update_baseline=false"]
        return words

    def _passed_on(self) -> list[str]:
        """The options of this run that matter for one test; others might write files or leave tests out."""
        words = [
            *shlex.split(os.environ.get("PYTEST_ADDOPTS", "")),
            *self._config.getini("addopts"),
            *map(str, self._config.invocation_params.args),
        ]
        kept = []
        for word, following in zip(words, [*words[1:], ""], strict=True):
            name, has_value, value = word.partition("=")
            if name not in _PASSED_ON:
                continue
            alone = has_value or name.startswith("--strict")
            value = value if alone else following
            if not (name == "-p" and "inplace" in value) and not value.startswith(("addopts", "inplace_")):
                kept += [word] if alone else [word, following]
        return kept

    def _environment(self, root: Path, task: dict[str, str], change: Change | None) -> dict[str, str]:
        """As ours, with what is imported from the project taken from its copy."""
        paths = [*sys.path, *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
        if change is not None:
            folder = (self._config.rootpath / change.path).parent
            while (folder / "__init__.py").is_file():
                folder = folder.parent
            paths.insert(0, str(folder))
        copies = [str(inside) for path in paths if path and (inside := self._inside(root, Path(path)))]
        own = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
        kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST_", "COV_"))}
        return {
            **kept,
            "PYTHONPATH": os.pathsep.join(dict.fromkeys([*copies, *own])),
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTHONHASHSEED": "0",
            VARIABLE: json.dumps(task),
        }

    def _inside(self, root: Path, path: Path) -> Path | None:
        """Where a path of the project is in its copy, or ``None`` if it is not in there."""
        try:
            inside = root / path.resolve().relative_to(self._config.rootpath.resolve())
        except ValueError:
            return None
        return inside if inside.exists() else None


def _first_line(text: str | None) -> str:
    return (text or "").strip().partition("\n")[0]
