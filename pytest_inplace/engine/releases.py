"""What differs between releases of torch in the parts that we take hold of."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from types import CodeType, FunctionType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch


def function_apply() -> Callable[..., Any]:
    """``Function.apply`` as a function of the class and the arguments."""
    from torch.autograd.function import Function

    apply: Any = Function.__dict__["apply"]
    written_in_python = getattr(apply, "__func__", None)
    return _apply_in_c if written_in_python is None else written_in_python


@functools.cache
def apply_code() -> CodeType:
    """The code of the Python frame in which a custom Function's tensors are saved; its class is ``cls``."""
    code: CodeType = function_apply().__code__
    return code


@functools.cache
def original_apply() -> Callable[..., Any]:
    """``Function.apply`` as torch has it, whatever is in its place now."""
    function, code = function_apply(), apply_code()
    if not isinstance(function, FunctionType) or function is _apply_in_c:
        return function
    copy = FunctionType(code, function.__globals__, function.__name__, None, function.__closure__)
    return functools.update_wrapper(copy, function)


def in_place_of_apply(replacement: Callable[..., Any]) -> tuple[Any, str, Any]:
    """How to replace ``Function.apply``: ``(owner, attribute, value)``.

    ``scale = Scale.apply`` at the top of a module has got hold of the function before us, so what is
    replaced is the function's code, not the attribute of the class; from torch 2.14 on it has none.
    """
    from torch.autograd.function import Function

    original_apply()  # which must have seen it as it is now
    function: Any = function_apply()
    code = _calling_replacement()
    if function is _apply_in_c or len(function.__code__.co_freevars) != len(code.co_freevars):
        return Function, "apply", classmethod(replacement)
    _replacement[:] = [replacement]
    return function, "__code__", code


_replacement: list[Callable[..., Any]] = []


def _calling_replacement() -> CodeType:
    __class__ = None

    def apply(cls: Any, *args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        # This runs with the globals of torch's module.
        from pytest_inplace.engine.releases import _replacement

        if _replacement:
            return _replacement[0](cls, *args, **kwargs)
        return __class__  # a variable of the enclosing scope, for the original has one, too

    return apply.__code__


def _apply_in_c(cls: Any, *args: Any, **kwargs: Any) -> Any:
    """From torch 2.14 on it is no Python function."""
    __tracebackhide__ = True
    import torch

    return torch._C._FunctionBase.__dict__["apply"].__get__(None, cls)(*args, **kwargs)


def in_place_of(owner: Any, name: str, make: Callable[[Any], Callable[..., Any]]) -> tuple[Any, str, Any]:
    """How to replace a function of torch, also for those who imported it by name before.

    ``make`` is given the function as it is.
    """
    function: Any = getattr(owner, name)
    simple = isinstance(function, FunctionType) and not function.__closure__ and not function.__defaults__
    if not simple:
        return owner, name, make(function)
    key = f"{function.__module__}.{name}"
    original = _originals.get(key)
    if original is None:
        copy = FunctionType(function.__code__, function.__globals__, name)
        copy.__kwdefaults__ = function.__kwdefaults__
        original = _originals[key] = functools.update_wrapper(copy, function)
    _replacements[key] = make(original)

    def call(*args: Any, **kwargs: Any) -> Any:
        __tracebackhide__ = True
        # This runs with the globals of torch's module.
        from pytest_inplace.engine.releases import _replacements

        return _replacements["key"](*args, **kwargs)

    code = call.__code__
    return (
        function,
        "__code__",
        code.replace(co_consts=tuple(key if c == "key" else c for c in code.co_consts)),
    )


_originals: dict[str, Any] = {}
_replacements: dict[str, Callable[..., Any]] = {}


def set_version(tensor: torch.Tensor, version: int) -> None:
    """Set the version counter of a tensor; torch 2.4 takes one tensor at a time."""
    import torch

    setting: Any = torch._C._autograd._unsafe_set_version_counter
    try:
        setting((tensor,), (version,))
    except TypeError:
        setting(tensor, version)


def shows_saved() -> bool:
    """Whether a node's ``_raw_saved_x`` tells what a hook made of x; that of torch 2.4 does not."""
    import torch

    return hasattr(torch._C._autograd.SavedTensor, "data")


class _Pushed(threading.local):
    def __init__(self) -> None:
        self.pairs: list[tuple[Any, Any]] = []


_pushed = _Pushed()


def top_of_hooks() -> tuple[Any, Any] | None:
    """The innermost pair of saved-tensor hooks of this thread; with torch 2.4, of those pushed since
    :func:`follow_hooks`."""
    import torch

    top = getattr(torch._C._autograd, "_top_saved_tensors_default_hooks", None)
    if top is None:
        return _pushed.pairs[-1] if _pushed.pairs else None
    found: tuple[Any, Any] | None = top(True)
    return found if found is None or found[0] is not None else None


def follow_hooks() -> None:
    """With torch 2.4, which does not show its stack of hooks, keep one of our own from now on."""
    import torch

    autograd: Any = torch._C._autograd
    if hasattr(autograd, "_top_saved_tensors_default_hooks"):
        return
    push, pop = autograd._push_saved_tensors_default_hooks, autograd._pop_saved_tensors_default_hooks
    if hasattr(push, "__wrapped__"):
        return

    @functools.wraps(push)
    def following_push(pack: Any, unpack: Any) -> None:
        push(pack, unpack)
        _pushed.pairs.append((pack, unpack))

    @functools.wraps(pop)
    def following_pop() -> None:
        pop()
        if _pushed.pairs:
            _pushed.pairs.pop()

    autograd._push_saved_tensors_default_hooks = following_push
    autograd._pop_saved_tensors_default_hooks = following_pop
