"""pytest-inplace: tests fail when an in-place operation would corrupt gradients, with the line that did it.

Importing this package imports neither torch nor the engine; the names below do when they are used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pytest_inplace.engine.guard import GuardReport as GuardReport
    from pytest_inplace.engine.guard import InplaceError as InplaceError
    from pytest_inplace.engine.guard import guard as guard
    from pytest_inplace.reports.findings import Finding as Finding
    from pytest_inplace.session.checking import PytestInplaceWarning as PytestInplaceWarning

__version__ = "0.1.0"
__all__ = ["Finding", "GuardReport", "InplaceError", "PytestInplaceWarning", "__version__", "guard"]

_HOMES = {
    "Finding": "reports.findings",
    "GuardReport": "engine.guard",
    "InplaceError": "engine.guard",
    "PytestInplaceWarning": "session.checking",
    "guard": "engine.guard",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        import importlib

        return getattr(importlib.import_module(f"pytest_inplace.{_HOMES[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
