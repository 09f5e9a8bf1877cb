"""What MkDocs gets beyond the pages in ``docs``: the reference, the rules, and the programs they link to."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from mkdocs.structure.files import File, Files  # noqa: E402

from docs_build import reference  # noqa: E402 - MkDocs loads this file by its path

# Pages of other parts of the project, in the navigation as soon as they exist.
OPTIONAL = ("baseline.md", "parity.md", "compatibility.md", "performance.md")
_LINK = re.compile(r"\]\((\.\.?/[^)#\s]+)(#[^)]*)?\)")


def on_config(config: Any) -> Any:
    docs = Path(config.docs_dir)
    for section in config.nav:
        if isinstance(section, dict) and "Rules" in section:
            section["Rules"] = ["rules/index.md", *(f"rules/{p.name}" for p in reference.rule_pages())]
        if isinstance(section, dict) and "More" in section:
            section["More"] = [p for p in section["More"] if p not in OPTIONAL or (docs / p).is_file()]
    return config


def on_files(files: Files, config: Any) -> Files:
    for name, text in reference.pages().items():
        files.append(File.generated(config, f"reference/{name}.md", content=text))
    for target in sorted({t for f in list(files) if f.src_uri.endswith(".md") for t in _outside(f, config)}):
        text = target.read_text(encoding="utf-8")
        page = f"# {target.name}\n\n`{target.relative_to(ROOT).as_posix()}`\n\n````python\n{text}````\n"
        files.append(File.generated(config, _uri(target), content=page))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    markdown = markdown.replace("<!-- generated: rules -->", reference.rules_table(links=True))
    here = Path(config.docs_dir, page.file.src_uri).parent

    def internal(match: re.Match[str]) -> str:
        target = Path(os.path.normpath(here / match[1]))
        if not _is_program(target, config):
            return match[0]
        return f"]({os.path.relpath(_uri(target), os.path.dirname(page.file.src_uri) or '.')})"

    return _LINK.sub(internal, markdown)


def _outside(file: Any, config: Any) -> set[Path]:
    """The programs outside of ``docs`` that a page links to."""
    here = Path(config.docs_dir, file.src_uri).parent
    targets = (Path(os.path.normpath(here / m[1])) for m in _LINK.finditer(file.content_string))
    return {target for target in targets if _is_program(target, config)}


def _is_program(target: Path, config: Any) -> bool:
    inside = target.is_relative_to(config.docs_dir)
    return target.suffix == ".py" and not inside and target.is_relative_to(ROOT) and target.is_file()


def _uri(target: Path) -> str:
    return f"source/{target.relative_to(ROOT).with_suffix('.md').as_posix()}"
