"""Living with others who use the machinery of saved tensors: give way where they need it to themselves."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable
from typing import Any

from pytest_inplace.engine.releases import top_of_hooks

_patched: list[tuple[Any, str, Any]] = []
_users = 0
_lock = threading.Lock()


class Yielded(threading.local):
    """Our pair of hooks while this thread has saved-tensor hooks disabled."""

    pair: tuple[Any, Any] | None = None


_yielded = Yielded()


def install(
    is_ours: Callable[[tuple[Any, Any]], bool], patches: Callable[[], list[tuple[Any, str, Any]]]
) -> None:
    """Put our patches in place for one more watch; ``patches`` gives those of others, to be put in first."""
    global _users
    with _lock:
        _users += 1
        if _users > 1:
            return
        try:
            for owner, name, replacement in patches():
                own = owner.__dict__
                _patched.append((owner, name, own[name] if name in own else getattr(owner, name)))
                setattr(owner, name, replacement)
            _patch_disabling(is_ours)
        except BaseException:  # a torch without one of the parts that we take hold of
            _users = 0
            _put_back()
            raise


def uninstall() -> None:
    """Take the patches out when the last watch ends."""
    global _users
    with _lock:
        _users -= 1
        if _users == 0:
            _put_back()


def _put_back() -> None:
    while _patched:
        owner, name, original = _patched.pop()
        setattr(owner, name, original)


def _replace(owner: Any, name: str, make: Callable[[Any], Any]) -> None:
    original = getattr(owner, name)
    _patched.append((owner, name, original))
    setattr(owner, name, functools.wraps(original)(make(original)))


def _patch_disabling(is_ours: Callable[[tuple[Any, Any]], bool]) -> None:
    """``torch.func`` and others switch hooks off, which PyTorch refuses while a pair is in place.

    Ours steps aside until hooks are enabled again; meanwhile PyTorch's own version check is on.
    """
    import torch

    autograd = torch._C._autograd

    def make_disable(original: Any) -> Any:
        def disable(*args: Any, **kwargs: Any) -> Any:
            top = top_of_hooks()
            if top is not None and is_ours(top):
                autograd._pop_saved_tensors_default_hooks()
                if top_of_hooks() is None:
                    _yielded.pair = top
                else:  # a user's hooks lie below: PyTorch refuses, with or without ours
                    autograd._push_saved_tensors_default_hooks(*top)
            return original(*args, **kwargs)

        return disable

    def make_enable(original: Any) -> Any:
        def enable(*args: Any, **kwargs: Any) -> Any:
            result = original(*args, **kwargs)
            pair, _yielded.pair = _yielded.pair, None
            if pair is not None:
                autograd._push_saved_tensors_default_hooks(*pair)
            return result

        return enable

    _replace(autograd, "_saved_tensors_hooks_disable", make_disable)
    _replace(autograd, "_saved_tensors_hooks_enable", make_enable)


def give_up(pair: tuple[Any, Any]) -> bool:
    """Whether ``pair`` had stepped aside and is now forgotten, since its watch ends."""
    if _yielded.pair == pair:
        _yielded.pair = None
        return True
    return False
