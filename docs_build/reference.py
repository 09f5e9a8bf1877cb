"""The reference, generated from the code: ``python -m docs_build.reference`` prints it.

Nothing of it is kept in a file, so it cannot be older than the code.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import textwrap
from pathlib import Path
from typing import Any

import pytest_inplace
from pytest_inplace.reports.findings import RULES
from pytest_inplace.session import hookspecs, options
from pytest_inplace.session.fixture import Inplace

RULE_PAGES = Path(__file__).resolve().parent.parent / "docs" / "rules"


class Options:
    """Stands in for pytest's parser and keeps what the plugin declares."""

    def __init__(self) -> None:
        self.options: list[tuple[str, dict[str, Any]]] = []
        self.ini: dict[str, tuple[str, dict[str, Any]]] = {}
        options.add_options(self)  # type: ignore[arg-type]

    def getgroup(self, *_: Any, **__: Any) -> Options:
        return self

    def addoption(self, flag: str, **settings: Any) -> None:
        self.options.append((flag, settings))

    def addini(self, key: str, help: str, **settings: Any) -> None:
        self.ini[key] = (help, settings)


def pages() -> dict[str, str]:
    """Each page of the reference by its name."""
    return {
        "options": options_page(),
        "marker": marker_page(),
        "fixture": fixture_page(),
        "api": api_page(),
        "json": json_page(),
        "hooks": hooks_page(),
    }


def rule_pages() -> list[Path]:
    return sorted(path for path in RULE_PAGES.glob("INP*.md"))


def rules_table(links: bool) -> str:
    rows = [
        f"| {f'[{rule.code}]({rule.code}.md)' if links else rule.code} | {rule.name} | {rule.summary} |"
        for rule in RULES
    ]
    return "\n".join(["| code | name | what happened |", "| --- | --- | --- |", *rows])


def options_page() -> str:
    declared = Options()
    rows = []
    for flag, settings in declared.options:
        key = flag.removeprefix("--").replace("-", "_")
        ini = f"`{key}`" if key in declared.ini else "-"
        text = re.sub(r" *\(ini: \w+\)", "", settings["help"])
        rows.append(f"| `{flag}{_argument(settings)}` | {ini} | {_cell(text)} |")
    others = set(declared.ini) - {f.removeprefix("--").replace("-", "_") for f, _ in declared.options}
    lines = [
        "# Options",
        "",
        "A marker beats the command line, which beats the ini file. A wrong value is an error that",
        "says where it came from. Paths on the command line are relative to the current folder, those in",
        "the ini file to rootdir.",
        "",
        "| command line | ini key | |",
        "| --- | --- | --- |",
        *rows,
    ]
    if others:
        lines += ["", "Keys of the ini file alone:", "", "| ini key | |", "| --- | --- |"]
        lines += [f"| `{key}` | {_cell(declared.ini[key][0])} |" for key in sorted(others)]
    return "\n".join(lines) + "\n"


def _argument(settings: dict[str, Any]) -> str:
    if "choices" in settings:
        return "=" + "|".join(settings["choices"])
    return f"={settings['metavar']}" if "metavar" in settings else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def marker_page() -> str:
    return f"# Marker\n\n{described('pytest.mark.inplace_safe', options.inplace_safe, returns=False)}"


def fixture_page() -> str:
    from pytest_inplace import plugin

    function = plugin.inplace
    fixture = inspect.getdoc(getattr(function, "_get_wrapped_function", lambda: function)()) or ""
    parts = ["# Fixture", "", "`inplace`", "", prose(fixture), ""]
    for name, member in vars(Inplace).items():
        if not name.startswith("_"):
            target = member.fget if isinstance(member, property) else member
            parts.append(
                described(f"inplace.{name}", target, method=True, call=not isinstance(member, property))
            )
    return "\n".join(parts)


def api_page() -> str:
    parts = ["# Python API", "", prose(inspect.getdoc(pytest_inplace) or ""), ""]
    for name in pytest_inplace.__all__:
        if name != "__version__":
            target = getattr(pytest_inplace, name)
            is_error = isinstance(target, type) and issubclass(target, Exception)
            parts.append(described(f"pytest_inplace.{name}", target, call=not is_error))
    return "\n".join(parts)


def hooks_page() -> str:
    parts = ["# Hooks", "", prose(inspect.getdoc(hookspecs) or ""), ""]
    for name, function in vars(hookspecs).items():
        if name.startswith("pytest_inplace_"):
            parts.append(described(name, function))
    return "\n".join(parts)


def described(
    name: str, target: Any, *, method: bool = False, call: bool = True, returns: bool = True
) -> str:
    """A heading, the signature and the docstring of one function or class."""
    lines = [f"## {name}", ""]
    if call:
        signature = inspect.signature(target)
        if method:
            signature = signature.replace(parameters=list(signature.parameters.values())[1:])
        if not returns or isinstance(target, type):
            signature = signature.replace(return_annotation=inspect.Signature.empty)
        lines += ["```text", f"{name}{signature}".replace("'", ""), "```", ""]
    lines += [prose(inspect.getdoc(target) or ""), ""]
    if isinstance(target, type) and dataclasses.is_dataclass(target):
        lines += ["| field | type |", "| --- | --- |"]
        lines += [f"| `{f.name}` | `{_cell(str(f.type))}` |" for f in dataclasses.fields(target)]
        lines.append("")
    return "\n".join(lines)


def prose(docstring: str) -> str:
    """A docstring as Markdown: roles and double backquotes become code, sections become lists."""
    text = re.sub(r":\w+:`~?([^`]+)`", r"`\1`", docstring).replace("``", "`")
    text = re.sub(r"^:param (\w+):", r"* `\1`:", text, flags=re.M)
    text = re.sub(
        r"^(Args|Raises|Returns|Yields):\n((?:(?:[ ]+.*)?\n?)+)",
        lambda m: f"**{m[1]}**\n\n{_items(m[2])}\n\n",
        text,
        flags=re.M,
    )
    return text


def _items(section: str) -> str:
    lines = []
    for line in textwrap.dedent(section).strip("\n").splitlines():
        named = re.match(r"([\w.,* ]+): (.*)", line)
        lines.append(
            f"* `{named[1]}`: {named[2]}" if named and not line.startswith(" ") else f"  {line.strip()}"
        )
    return "\n".join(lines)


def json_page() -> str:
    from docs_build.json_format import rows

    table = [f"| `{path}` | {kind} | {_cell(text)} |" for path, kind, text in rows()]
    return "\n".join(
        [
            "# JSON report",
            "",
            "What `--inplace-json=FILE` writes: one object. `[]` stands for each of a list.",
            "",
            "Paths are relative to pytest's rootdir where they lie below it, and what is not known",
            "is `null`. Further keys may be added; a change of the meaning of one raises `schema`.",
            "",
            "| key | type | |",
            "| --- | --- | --- |",
            *table,
            "",
        ]
    )


if __name__ == "__main__":
    for text in pages().values():
        print(text)
