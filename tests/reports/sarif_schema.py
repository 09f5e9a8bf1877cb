"""The published SARIF schema and Microsoft's own validator, each from the package that ships it."""

from __future__ import annotations

import functools
import json
import os
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import pytest

SCHEMA_PACKAGE = "@microsoft/jest-sarif@1.0.0-beta.0"
SCHEMA_MEMBER = "package/lib/schemas/sarif-2.1.0-rtm.5.json"
MULTITOOL_PACKAGE = "@microsoft/sarif-multitool-linux@5.7.0"


@functools.cache
def _unpacked(package: str, config: pytest.Config) -> Path:
    """The folder with the package's files, fetched once and kept in pytest's cache, if it has one."""
    cache = getattr(config, "cache", None)  # not with -p no:cacheprovider
    home = Path(tempfile.mkdtemp()) if cache is None else Path(cache.mkdir("inplace-npm"))
    folder = home / package.replace("@", "").replace("/", "-")
    if folder.is_dir():
        return folder
    npm = shutil.which("npm")
    if npm is None:
        pytest.skip("the SARIF schema comes in an npm package, and there is no npm")
    with tempfile.TemporaryDirectory(dir=home) as name:
        command = [npm, "pack", "--silent", package, "--pack-destination", name]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        archives = list(Path(name).glob("*.tgz"))
        if done.returncode or not archives:
            pytest.skip(f"npm cannot fetch {package}: {(done.stderr.splitlines() or [''])[0]}")
        with tarfile.open(archives[0]) as archive:
            archive.extractall(Path(name, "out"), filter="data")
        try:
            Path(name, "out").rename(folder)
        except OSError:
            assert folder.is_dir()  # another process was quicker
    return folder


@functools.cache
def schema(config: pytest.Config) -> dict[str, Any]:
    """The JSON schema of SARIF 2.1.0, or a skip that says why there is none."""
    text = (_unpacked(SCHEMA_PACKAGE, config) / SCHEMA_MEMBER).read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found


def problems(document: dict[str, Any], config: pytest.Config) -> list[str]:
    """What two validators that share no code, one in Python and one in Rust, say against a document."""
    jsonschema = pytest.importorskip("jsonschema")
    jsonschema_rs = pytest.importorskip("jsonschema_rs")
    plain = json.loads(json.dumps(document))
    first = jsonschema.validators.validator_for(schema(config))(schema(config)).iter_errors(plain)
    lenient = json.loads(json.dumps(schema(config)))
    # A stray bracket in these patterns is no regular expression to Rust. We write no "language".
    for name in ("run", "toolComponent"):
        del lenient["definitions"][name]["properties"]["language"]["pattern"]
    second = jsonschema_rs.validator_for(lenient).iter_errors(plain)
    return [f"jsonschema: {e.message}" for e in first] + [f"jsonschema-rs: {e.message}" for e in second]


def multitool(path: Path, config: pytest.Config) -> list[dict[str, Any]]:
    """What Microsoft's SARIF Multitool, with its own rules, reports about a file (a download of 43 MB)."""
    binary = _unpacked(MULTITOOL_PACKAGE, config) / "package/Sarif.Multitool"
    binary.chmod(0o755)
    output = path.with_name("multitool.sarif")
    subprocess.run(
        [binary, "validate", str(path), "--output", str(output), "--log", "ForceOverwrite"],
        env={**os.environ, "DOTNET_SYSTEM_GLOBALIZATION_INVARIANT": "1"},
        capture_output=True, check=False, timeout=120,
    )  # fmt: skip
    report = json.loads(output.read_text(encoding="utf-8-sig"))
    found: list[dict[str, Any]] = report["runs"][0].get("results", [])
    return found
