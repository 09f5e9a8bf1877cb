#!/usr/bin/env python3
"""Set up a virtual environment of this project's own and run it: ``python3 dev.py example`` or ``test``.

``python3 dev.py matrix`` runs the tests with other releases, each in an environment of its own.

Needs nothing but Python 3.10 or newer. Everything goes into ``.venv`` beside this file.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent
VENV = ROOT / ".venv"
PYTHON = VENV / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
# The version that the reports and the ground truth were recorded with.
TORCH = os.environ.get("PYTEST_INPLACE_TORCH", "torch==2.13.0")
EXAMPLE = ROOT / "example_project"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["example", "test", "setup", "matrix"])
    parser.add_argument("--only", default="", help="matrix: rows whose name contains this")
    parser.add_argument(
        "--exhaustive", action="store_true", help="test: all of the ground truth, for a night"
    )
    arguments = parser.parse_args()
    if arguments.command == "matrix":
        return matrix(arguments.only)
    set_up()
    if arguments.command == "example":
        return example()
    return test(arguments.exhaustive) if arguments.command == "test" else 0


def set_up() -> None:
    """Make the environment, unless one for these very requirements is there."""
    wanted = hashlib.sha256(
        "\n".join([TORCH, sys.version, (ROOT / "pyproject.toml").read_text()]).encode()
    ).hexdigest()
    stamp = VENV / "set-up-for"
    if stamp.is_file() and stamp.read_text() == wanted and PYTHON.is_file():
        return
    print(f"Setting up {VENV} (torch is a large download where it is not at hand) ...", flush=True)
    venv.create(VENV, with_pip=True, clear=True)
    pip = [PYTHON, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    # torch first and pinned: an unpinned requirement may bring another build.
    subprocess.run([*pip, TORCH], check=True)
    subprocess.run([*pip, "--editable", f"{ROOT}[test,lint,docs]"], check=True)
    stamp.write_text(wanted)


def run(*command: object, cwd: Path = ROOT) -> int:
    words = [str(word) for word in command]
    print("$", " ".join(words), flush=True)
    environment = {**os.environ, "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1")}
    return subprocess.run(words, cwd=cwd, env=environment, check=False).returncode


def example() -> int:
    """The main job: the example's right tests pass, and each of its defects is found where it is."""
    pytest = (PYTHON, "-m", "pytest", "--inplace-check")
    right = run(*pytest, "-q", "tests", cwd=EXAMPLE)
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "findings.json")
        run(*pytest, "tests_with_defects", f"--inplace-json={report}", cwd=EXAMPLE)
        found = {test["nodeid"]: test["findings"] for test in json.loads(report.read_text())["tests"]}
    expected = json.loads((EXAMPLE / "expected_findings.json").read_text())
    wrong = [
        defect["nodeid"] for defect in expected if not is_as_recorded(defect, found.get(defect["nodeid"], []))
    ]
    print(f"\n{len(expected) - len(wrong)} of {len(expected)} defects found as recorded, lines included.")
    for nodeid in wrong:
        print(f"not as recorded: {nodeid}: {found.get(nodeid)}")
    return 1 if right or wrong else 0


def is_as_recorded(defect: dict[str, object], findings: list[dict[str, object]]) -> bool:
    if len(findings) != 1:
        return False
    finding = findings[0]
    lines = [
        site["line"] if isinstance(site := finding[key], dict) else None for key in ("saved", "modified")
    ]
    return [finding["code"], finding["state"], *lines] == [
        defect[key] for key in ("code", "state", "saved_line", "modified_line")
    ]


def test(exhaustive: bool) -> int:
    """Lint, types, documentation, the tests, and the ground truth on two processes."""
    if exhaustive:
        os.environ["PYTEST_INPLACE_EXHAUSTIVE"] = "1"
    truth = ROOT / "tests" / "ground_truth"
    steps = [
        (PYTHON, "-m", "ruff", "check", "."),
        (PYTHON, "-m", "ruff", "format", "--check", "."),
        (PYTHON, "-m", "mypy"),
        (PYTHON, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", VENV / "site"),
        (PYTHON, "-m", "pytest", "-q", "tests", f"--ignore={truth}"),
        (PYTHON, "-m", "pytest", "-q", "-n", "2", truth),
    ]
    return next((code for step in steps if (code := run(*step))), 0)


# Python, and what to install first. Numpy 2 does not fit torch 2.4.
MATRIX = {
    "python3.10 torch2.4 pytest8.0": ("python3.10", ["torch==2.4.1", "numpy<2", "pytest==8.0.*"]),
    "python3.11 torch2.4": ("python3.11", ["torch==2.4.1", "numpy<2"]),
    "python3.11 pytest8.0": ("python3.11", [TORCH, "pytest==8.0.*"]),
    "python3.11 newest": ("python3.11", ["torch"]),
    "python3.12": ("python3.12", [TORCH]),
    "python3.12 newest": ("python3.12", ["torch"]),
    "python3.13 newest": ("python3.13", ["torch"]),
}


def matrix(only: str) -> int:
    """The tests without the ground truth, under each release in turn; a Python that is missing is told."""
    results = {}
    for name, (python, first) in MATRIX.items():
        if only not in name:
            continue
        found = shutil.which(python)
        if found is None or subprocess.run([found, "-c", ""], check=False).returncode:
            results[name] = f"not run: no {python}"
            continue
        folder = ROOT / ".venv-matrix" / name.replace(" ", "-")
        subprocess.run([found, "-m", "venv", folder], check=True)
        inside = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
        pip = (inside, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        if run(*pip, *first) or run(*pip, *first, "--editable", f"{ROOT}[test]"):
            results[name] = "not run: its packages cannot be installed"
            continue
        parts = [ROOT / "tests" / part for part in ("engine", "integration", "neighbours")]
        results[name] = (
            "failed"
            if run(inside, "-m", "pytest", "-q", "-n", "2", "-p", "no:randomly", *parts)
            else "passed"
        )
    print("\n" + "\n".join(f"{name}: {result}" for name, result in results.items()))
    return int("failed" in results.values())


if __name__ == "__main__":
    sys.exit(main())
