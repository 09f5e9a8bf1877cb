"""Watchpoints: after every instruction of user code that can write, ask whether a watched tensor changed.

Only user frames are traced, instruction by instruction; library frames cost one event each. So a write
made by torch, NumPy or any other library is attributed to the user's expression that called it.
"""

from __future__ import annotations

import dis
import sys
import threading
from collections.abc import Callable
from types import CodeType, FrameType
from typing import Any

from pytest_inplace.reports.call_sites import Capture, is_library, is_library_file, user_frame

Step = Callable[["Capture | None", FrameType], None]
Returned = Callable[[FrameType, Any], None]

_WRITING = (
    "CALL", "PRECALL", "BINARY_", "UNARY_", "INPLACE_", "COMPARE_OP", "CONTAINS_OP", "STORE_SUBSCR",
    "STORE_ATTR", "STORE_SLICE", "DELETE_", "LOAD_ATTR", "FOR_ITER", "GET_", "SEND", "YIELD", "BEFORE_WITH",
    "SETUP_WITH", "WITH_EXCEPT_START", "RERAISE",
)  # fmt: skip
_offsets: dict[CodeType, frozenset[int]] = {}


def writing_offsets(code: CodeType) -> frozenset[int]:
    """The offsets of the instructions in ``code`` that run other code and so can write to a tensor."""
    found = _offsets.get(code)
    if found is None:
        found = _offsets[code] = frozenset(
            i.offset for i in dis.get_instructions(code) if i.opname.startswith(_WRITING)
        )
    return found


def _generated(frame: FrameType) -> bool:
    """Whether it is code without a file that a library made, as a dataclass's ``__init__``."""
    if not frame.f_code.co_filename.startswith("<"):
        return False
    origin, name = frame.f_globals.get("__file__"), frame.f_globals.get("__name__")
    if isinstance(origin, str):
        return is_library_file(origin)
    return isinstance(name, str) and name.startswith("namedtuple_")


class Tracer:
    """Calls ``step`` with each user instruction that may have written, right after it ran."""

    def __init__(self, step: Step, returned: Returned | None = None) -> None:
        self._step = step
        self._returned = returned
        self._previous: Any = None
        self._previous_of_threads: Any = None
        self._settrace = sys.settrace
        self._running = False

    def start(self, frame: FrameType | None = None) -> None:
        """Trace from now on; with ``frame``, the frames at and above it that already run are traced too."""
        self._previous, self._previous_of_threads = sys.gettrace(), threading.gettrace()
        self._running = True
        # Python 3.12 and later look at settrace() only whether any frame asks for instructions.
        sys._getframe().f_trace_opcodes = True
        self._settrace, sys.settrace = sys.settrace, self._set_by_others
        self._settrace(self._called)
        threading.settrace(self._called)
        while frame is not None:
            if not is_library(frame.f_code):
                self._traced(frame)
            frame = frame.f_back

    def stop(self) -> None:
        """Put back whatever traced before."""
        if self._running:
            self._running = False
            sys.settrace = self._settrace
            sys.settrace(self._previous)
            threading.settrace(self._previous_of_threads)

    def _set_by_others(self, function: Any) -> None:
        """Whoever turns tracing off, as pytest-benchmark does to measure, would hide the writes from us."""
        if function is not None:
            self._settrace(function)

    def enter_thread(self) -> None:
        """Trace this thread, too. One that begins now does so by itself, one of a pool has begun before."""
        if self._running and sys.gettrace() is None:
            sys.settrace(self._called)

    def _called(self, frame: FrameType, event: str, arg: Any) -> Any:
        if not self._running or is_library(frame.f_code) or _generated(frame):
            return None
        caller = user_frame(frame.f_back)
        # A thread has no caller; it must take its turn all the same, for its first instruction may be long.
        self._step(None if caller is None else (caller.f_code, caller.f_lasti), caller or frame)
        return self._traced(frame)

    def _traced(self, frame: FrameType) -> Any:
        code = frame.f_code
        writing = writing_offsets(code)
        step, returned = self._step, self._returned
        last = frame.f_lasti

        def local(frame: FrameType, event: str, arg: Any) -> Any:
            nonlocal last
            if not self._running:
                frame.f_trace_opcodes = False
                return None
            if event == "opcode":
                if last in writing:
                    step((code, last), frame)
                last = frame.f_lasti
            elif event == "return":
                step((code, last), frame)
                if returned is not None:
                    returned(frame, arg)
            elif event == "exception":
                step((code, last), frame)
            return local

        frame.f_trace = local  # first: Python 3.13 asks for instructions only of a frame that is traced
        frame.f_trace_opcodes = True
        frame.f_trace_lines = False
        return local
