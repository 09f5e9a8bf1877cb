"""The site builds without a warning and without a network, and has its pages."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs_build.reference import rule_pages
from pytest_inplace.reports.findings import RULES
from tests.documentation.blocks import ROOT

pytest.importorskip("material")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_every_rule_is_in_the_navigation(site: Path) -> None:
    index = (site / "index.html").read_text("utf-8")
    assert rule_pages()
    for path in rule_pages():
        assert f'href="rules/{path.stem}.html"' in index
    table = (site / "rules" / "index.html").read_text("utf-8")
    for rule in RULES:
        assert f">{rule.code}</a>" in table
        assert html.escape(rule.summary, quote=False) in table


def test_generated_pages_are_there(site: Path) -> None:
    for name in ("options", "marker", "fixture", "api", "json", "hooks"):
        assert (site / "reference" / f"{name}.html").is_file()
    program = site / "source" / "tests" / "silent_kinds" / "programs" / "kron.html"
    assert "torch.kron" in re.sub("<[^>]+>", "", program.read_text("utf-8"))


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|img|link)[^>]*(?:src|href)="(https?:[^"]+)"', page.read_text("utf-8")
        )
        assert not loaded, page
