"""Is a tensor that is being saved an output of the operation that saves it? An output must not be held.

The node of a tensor would tell, but is looked at only where nothing else does: PyTorch makes an object for
it then, which costs more than all the rest and is freed by recursion, so that a chain of some ten thousand
operations whose nodes were looked at overflows the stack in the end.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

from pytest_inplace.engine import releases
from pytest_inplace.engine.ledger import Record
from pytest_inplace.engine.quiet import quiet

if TYPE_CHECKING:
    import torch

IsOutput = Callable[["torch.Tensor", FrameType, int, int], bool]


_counts: list[int] = []


def passing_references() -> int:
    """What ``sys.getrefcount`` says in a pack hook, at most, of a tensor that no variable refers to.

    A variable and the call that is given it count for one each, or, from Python 3.14 on, for one together.
    So one less than those leaves room for a tracer, which has a reference to what is in our own frame.
    """
    import torch

    autograd = torch._C._autograd
    if _counts or autograd._saved_tensors_hooks_get_disabled_error_message() is not None:
        return max(_counts, default=1) - 1

    def pack(tensor: torch.Tensor) -> int:
        _counts.append(sys.getrefcount(tensor))
        return 0

    with quiet(), torch.inference_mode(False), torch.enable_grad():
        variable = torch.zeros(1, requires_grad=True, device="cpu") + 1
        autograd._push_saved_tensors_default_hooks(pack, lambda packed: variable)
        try:
            variable.sin()
        finally:
            autograd._pop_saved_tensors_default_hooks()
    return max(_counts) - 1


def make_is_output() -> IsOutput:
    """The question for a tensor with a history, saved by Python code that runs in a frame.

    Its last arguments are about the saves that were last made without asking, by one operation: the number
    of the node to come at that time, and the ordinal of the first of them.
    """
    import torch

    peek = torch._C._autograd._get_sequence_nr
    # It saves its arguments without a node of its own, and torch 2.4 does not import it by itself.
    checkpoint = os.path.join(os.path.dirname(torch.__file__), "utils", "checkpoint.py")
    apply_code = releases.apply_code()
    clone_at = 0

    def is_output(tensor: torch.Tensor, frame: FrameType, unasked_at: int, since: int) -> bool:
        nonlocal clone_at
        node: Any = tensor.grad_fn
        code = frame.f_code
        if code is apply_code:
            # Forward may have built nodes of its own meanwhile, so sequence numbers say nothing here. Taking
            # an input made by the same Function for an output only means that an alias of it is kept.
            return type(node) is getattr(frame.f_locals.get("cls"), "_backward_cls", None)
        # An output is made by the node that saves it: the newest one of this thread. An operation in
        # place that needs what it overwrites saves a clone of that first, with a newer node still.
        number, following = node._sequence_nr(), peek()
        if number + 1 == following:
            clone_at = following if type(node).__name__ == "CloneBackward0" else 0
            return not (tensor._is_view() and _remade(node, number)) and code.co_filename != checkpoint
        if number + 2 != following:
            return False
        return clone_at == following or (unasked_at == following and _has_saved(node, since))

    return is_output


def _has_saved(node: Any, since: int) -> bool:
    """Whether this node holds a record at least as late as that with the ordinal ``since``."""
    if not releases.shows_saved():
        from pytest_inplace.engine.saved import held_by

        return any(record.ordinal >= since for record in held_by(node))
    for name in [name for name in dir(node) if name.startswith("_raw_saved_")]:
        saved = getattr(node, name)
        for each in saved if isinstance(saved, tuple) else (saved,):
            record = getattr(each, "data", None)
            if isinstance(record, Record) and record.ordinal >= since:
                return True
    return False


def _remade(node: Any, number: int) -> bool:
    # The node of a view whose base was written is made anew when it is looked at, just now. That of
    # a view written in place is newest, too, but then its base got its node in the same operation.
    below = node.next_functions[0][0]
    return below is not None and below._sequence_nr() + 1 != number
