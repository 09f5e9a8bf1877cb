"""pytest in a process that has the stand-in device, judged by the report that it leaves."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).parents[2]


def run(path: Path, folder: Path, *options: str) -> str:
    """Run a test file with the device and give what it printed; reports go to ``folder``."""
    environment = {k: v for k, v in os.environ.items() if not k.startswith("PYTEST_") and k != "CI"}
    environment |= {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.standin.plugin", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, str(path), f"--junitxml={folder / 'junit.xml'}", *options],
        cwd=path.parent, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    # Judged by the report: a device thread can abort the process when everything is over.
    assert (folder / "junit.xml").exists(), done.stdout + done.stderr
    return done.stdout


def run_tests(path: Path, folder: Path, *options: str) -> dict[str, str]:
    """The outcome of each test by name."""
    run(path, folder, *options)
    found = {}
    for case in ElementTree.parse(folder / "junit.xml").iter("testcase"):
        kinds = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
        found[case.attrib["name"]] = kinds[0] if kinds else "passed"
    return found
