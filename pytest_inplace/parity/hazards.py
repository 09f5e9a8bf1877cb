"""Operations that are right on the CPU by luck: what another device makes of them is not defined."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable
from typing import Any

from pytest_inplace.engine.quiet import quiet
from pytest_inplace.parity import operators, places
from pytest_inplace.reports import call_sites

Concern = Callable[[dict[str, Any]], bool]
"""Whether a call is undefined elsewhere, from its arguments by name."""


class Hazards:
    """Looks at the operators of a placed program, and keeps what it sees with the user's line."""

    def __init__(self) -> None:
        self.seen: dict[tuple[str, Any], None] = {}
        self._concerns: dict[Any, Concern | None] = {}

    def tell(self, text: str, where: Any) -> None:
        """Keep what was seen, once for each line."""
        self.seen.setdefault((text, where))

    def concern(self, func: Any) -> Concern | None:
        """What there is to look at when this operator runs."""
        if func not in self._concerns:
            self._concerns[func] = _concern(func)
        return self._concerns[func]

    def look(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """An operator is about to run with these arguments."""
        concern = self.concern(func)
        if concern is None:
            return
        text = None
        if concern is not _writes:
            given = {**{a.name: v for a, v in zip(func._schema.arguments, args, strict=False)}, **kwargs}
            # What the operator does not take it will say itself.
            with quiet(), contextlib.suppress(RuntimeError, IndexError, ValueError):
                if concern(given):
                    text = f"{_name(func)} writes different values to one place: {_UNDEFINED}"
        if text is None:
            for tensor in operators.arguments_written(func, args, kwargs):
                if places.overlaps(tensor):
                    what = "an expanded tensor" if 0 in tensor.stride() else "an overlapping view"
                    text = f"{_name(func)} writes through {what}: its elements share places in memory"
        if text is not None:
            self.tell(text, call_sites.capture(sys._getframe(2)))


_UNDEFINED = "which one stays is not defined there"


def _writes(given: dict[str, Any]) -> bool:
    return False


def _indexed(given: dict[str, Any]) -> bool:
    return not given.get("accumulate") and places.indexed(given["self"], given["indices"], given["values"])


def _scattered(given: dict[str, Any]) -> bool:
    return places.scattered(given["dim"], given["index"], given["src"])


def _copied(given: dict[str, Any]) -> bool:
    return places.copied(given["self"], given["dim"], given["index"], given["source"])


def _put(given: dict[str, Any]) -> bool:
    return not given.get("accumulate") and places.put(given["self"], given["index"], given["source"])


_CONCERNS: dict[str, Concern] = {
    "index_put": _indexed,
    "_index_put_impl": _indexed,
    "_unsafe_index_put": _indexed,
    "scatter": _scattered,
    "index_copy": _copied,
    "put": _put,
}
_VALUES = ("", "default", "out", "src", "src_out")
"""Overloads that write elements of a tensor: not one value everywhere, and none that adds up."""


def _concern(func: Any) -> Concern | None:
    """What to look at in calls of an operator, if anything."""
    known = _CONCERNS.get(_name(func).rstrip("_"))
    if known is not None and func._overloadname in _VALUES:
        return known
    writes = any(a.alias_info is not None and a.alias_info.is_write for a in func._schema.arguments)
    return _writes if writes else None


def _name(func: Any) -> str:
    return str(func._schema.name).removeprefix("aten::")
