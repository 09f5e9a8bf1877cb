"""The shape of the package: arrows one way, and nothing imported before it is needed."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parent.parent / "pytest_inplace"


def modules(folder: str) -> set[str]:
    """As ``engine.saved``; those of the package itself without a folder."""
    found = sorted((PACKAGE / folder).rglob("*.py"))
    return {".".join(p.relative_to(PACKAGE).with_suffix("").parts) for p in found if p.stem != "__init__"}


# Reports import neither torch nor pytest; the engine imports no pytest; the pytest side may use both.
REPORTS = modules("reports")
ENGINE = modules("engine") | modules("parity")
PYTEST_SIDE = modules("session") | {"plugin"}
ALL = REPORTS | ENGINE | PYTEST_SIDE


def imported(module: str, *, at_load: bool) -> set[str]:
    """The top-level names of what a module imports, at load or anywhere, but for type checking only."""
    tree = ast.parse((PACKAGE / f"{module.replace('.', '/')}.py").read_text())
    found: set[str] = set()
    stack: list[ast.AST] = [tree]
    while stack:
        node = stack.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if at_load and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            parts = node.module.split(".")
            if parts[0] == "pytest_inplace":
                found.update(
                    name if (name := f"{node.module}.{a.name}").partition(".")[2] in ALL else node.module
                    for a in node.names
                )
            else:
                found.add(parts[0])
        stack.extend(ast.iter_child_nodes(node))
    return found


@pytest.mark.parametrize("module", sorted(REPORTS))
def test_reports_know_neither_torch_nor_pytest(module: str) -> None:
    names = imported(module, at_load=False)
    assert not names & {"torch", "pytest", "_pytest"}
    assert {n for n in names if n.startswith("pytest_inplace.")} <= {f"pytest_inplace.{m}" for m in REPORTS}


@pytest.mark.parametrize("module", sorted(ENGINE))
def test_the_engine_knows_no_pytest(module: str) -> None:
    names = imported(module, at_load=False)
    assert not names & {"pytest", "_pytest", "pluggy"}
    assert not {f"pytest_inplace.{p}" for p in PYTEST_SIDE} & names


@pytest.mark.parametrize("module", sorted(ALL))
def test_no_module_imports_torch_at_load(module: str) -> None:
    assert "torch" not in imported(module, at_load=True)


def test_engine_modules_import_one_another_without_cycles() -> None:
    arrows = {m: {n.partition(".")[2] for n in imported(m, at_load=True) if n.startswith("pytest_inplace.")}
              for m in ALL}  # fmt: skip
    done: set[str] = set()
    while ready := {m for m in arrows if m not in done and arrows[m] - {"__version__"} <= done}:
        done |= ready
    assert done == set(arrows), f"in or above a cycle: {sorted(set(arrows) - done)}"


def test_loading_the_plugin_imports_neither_torch_nor_the_engine() -> None:
    code = (
        "import sys, pytest_inplace, pytest_inplace.plugin\n"
        "unwanted = {'torch', 'numpy', 'xxhash', 'pytest_inplace.engine.watch'}\n"
        "loaded = unwanted & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_modules_stay_small() -> None:
    long = {
        str(p.relative_to(PACKAGE)): n
        for p in PACKAGE.rglob("*.py")
        if (n := len(p.read_text().splitlines())) > 400
    }
    assert not long
