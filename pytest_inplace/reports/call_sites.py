"""Where we are in the user's code: cheap to capture, resolved to text only if a finding needs it.

A *user frame* is the innermost frame that does not belong to torch, to the test machinery, to the
standard library or to an installed package: the line a user can change.
"""

from __future__ import annotations

import ast
import linecache
import os
import re
import site
import sys
import sysconfig
from types import CodeType, FrameType

from pytest_inplace.reports.findings import Site

Capture = tuple[CodeType, int]
"""A code object and the offset of the instruction in it (``frame.f_lasti``)."""

_PACKAGE = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_COMPREHENSION = re.compile(r"(\.<locals>)?(\.?<(list|dict|set)comp>|\.?<genexpr>)+")
_is_library: dict[CodeType, bool] = {}
_by_filename: dict[str, bool] = {}
_user_roots: list[str] = []
_library_roots: list[str] = []


def _find_library_roots() -> list[str]:
    paths = sysconfig.get_paths()
    roots = {paths[key] for key in ("stdlib", "platstdlib", "purelib", "platlib") if key in paths}
    roots.update(site.getsitepackages() if hasattr(site, "getsitepackages") else ())
    roots.add(site.getusersitepackages())
    for name in ("torch", "pytest", "_pytest", "pluggy", "numpy"):
        module = sys.modules.get(name)
        origin = getattr(module, "__file__", None)
        if origin:
            roots.add(os.path.dirname(origin) if name != "pytest" else origin)
    return [os.path.normcase(os.path.realpath(root)) + os.sep for root in roots]


def add_user_root(path: str) -> None:
    """Count files below ``path`` as the user's, even where it lies inside an installation folder."""
    root = os.path.normcase(os.path.realpath(path)) + os.sep
    if root not in _user_roots and not any(part in root for part in ("site-packages", "dist-packages")):
        _user_roots.append(root)
        _is_library.clear()
        _by_filename.clear()


def user_roots() -> list[str]:
    """The folders given to :func:`add_user_root`."""
    return list(_user_roots)


def is_library(code: CodeType) -> bool:
    """Whether ``code`` belongs to an installed package, the standard library or this plugin."""
    known = _is_library.get(code)
    if known is None:
        known = _is_library[code] = is_library_file(code.co_filename)
    return known


def is_library_file(filename: str) -> bool:
    """The same for a file."""
    known = _by_filename.get(filename)
    if known is None:
        known = _by_filename[filename] = _library_file(filename)
    return known


def _library_file(filename: str) -> bool:
    if filename.startswith("<"):
        # Notebook cells and exec'd user code have names such as <ipython-input-..> or <string>;
        # frozen importlib and torch's generated code are not the user's.
        return filename.startswith(("<frozen", "<eval_with_key", "<__array_function__", "<attrs", "<torch"))
    if not _library_roots:
        _library_roots.extend(_find_library_roots())
    path = os.path.normcase(os.path.realpath(filename))
    if path.startswith(_PACKAGE):
        return True
    inside = [root for root in _library_roots if path.startswith(root)]
    if not inside:
        return False
    # A project that lives inside an installation prefix (a virtual environment in the checkout is
    # the reverse case and needs no care) is the user's unless a library root is nearer to the file.
    nearest = max(inside, key=len)
    return not any(path.startswith(root) and len(root) > len(nearest) for root in _user_roots)


def capture(frame: FrameType | None) -> Capture | None:
    """The innermost user frame at or above ``frame``, or ``None`` where there is none."""
    known = _is_library
    while frame is not None:
        code = frame.f_code
        library = known.get(code)
        if library is None:
            library = is_library(code)
        if not library:
            return code, frame.f_lasti
        frame = frame.f_back
    return None


def user_frame(frame: FrameType | None) -> FrameType | None:
    """Like :func:`capture`, but the frame itself; only for use while that frame runs."""
    while frame is not None and is_library(frame.f_code):
        frame = frame.f_back
    return frame


def line_of(where: Capture) -> int:
    """The line number of a captured instruction."""
    code, lasti = where
    line = code.co_firstlineno
    for start, end, number in code.co_lines():
        if start <= lasti < end and number is not None:
            line = number
    return line


def resolve(where: Capture | None, op: str | None = None) -> Site | None:
    """The captured instruction as a :class:`Site`, with its source line if that is to be had."""
    if where is None:
        return None
    code, lasti = where
    line = line_of(where)
    source = linecache.getline(code.co_filename, line).rstrip("\r\n") or None
    if source is not None and not _is_source_of(code):
        source = None
    column, end_column = _columns(code, lasti, line, source)
    return Site(code.co_filename, line, code.co_name, source, column, end_column, op, qualname(code))


def _is_source_of(code: CodeType) -> bool:
    """Whether the file still has the function where it was compiled: it may have changed in the meantime."""
    name = code.co_name
    if name.startswith("<"):
        return True
    first = linecache.getline(code.co_filename, code.co_firstlineno).lstrip()
    return first.startswith("@") or name in first


def qualname(code: CodeType) -> str | None:
    """``Net.forward``: the name of a code object with what it is defined in, or ``None`` if not known."""
    known = getattr(code, "co_qualname", None)  # from Python 3.11 on
    name = known if known is not None else _qualname_in_source(code)
    # From Python 3.12 on comprehensions are part of the function around them; so here everywhere.
    return None if name is None else _COMPREHENSION.sub("", name) or "<module>"


def _qualname_in_source(code: CodeType) -> str | None:
    """The name as Python 3.11 has it, from the definitions around the code's first line."""
    if code.co_name == "<module>":
        return code.co_name
    try:
        tree = ast.parse("".join(linecache.getlines(code.co_filename)))
    except (SyntaxError, ValueError):
        return None
    first = code.co_firstlineno
    parts: list[str] = []
    body: list[ast.stmt] = tree.body
    while True:
        around = next((n for n in body if _covers(n, first)), None)
        if around is None:
            return "".join(parts) + code.co_name if parts or code.co_name.startswith("<") else None
        name = getattr(around, "name", None)
        if name == code.co_name and first == _first_line(around):
            return "".join(parts) + code.co_name
        if isinstance(around, ast.FunctionDef | ast.AsyncFunctionDef):
            parts.append(f"{around.name}.<locals>.")
        elif isinstance(around, ast.ClassDef):
            parts.append(f"{around.name}.")
        body = [n for n in ast.iter_child_nodes(around) if isinstance(n, ast.stmt)] + [
            n for h in getattr(around, "handlers", ()) for n in h.body
        ]


def _first_line(node: ast.stmt) -> int:
    """Where a statement begins, its decorators included."""
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(d.lineno for d in decorators)])


def _covers(node: ast.stmt, line: int) -> bool:
    return _first_line(node) <= line <= (node.end_lineno or node.lineno)


def _columns(code: CodeType, lasti: int, line: int, source: str | None) -> tuple[int | None, int | None]:
    positions = getattr(code, "co_positions", None)
    if positions is None or source is None or lasti < 0:
        return None, None
    found = list(positions())[lasti // 2]
    start_line, end_line, start, end = found
    if start_line != line or start is None:
        return None, None
    encoded = source.encode()  # CPython counts UTF-8 bytes; a report counts characters
    first = len(encoded[:start].decode(errors="replace"))
    last = (
        len(encoded[:end].decode(errors="replace")) if end is not None and end_line == line else len(source)
    )
    return (first, last) if last > first else (None, None)
