"""The kinds of defects, and what is claimed of each: what plain PyTorch does and the rule of the plugin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Plain = Literal["silent", "raises", "right"]

CHANGES_LEAF = "the program changes its own leaf"
STEPS = "an optimizer step is part of the program"


@dataclass(frozen=True)
class Kind:
    """``name`` is the program's module, ``plain`` what plain PyTorch is claimed to do with it.

    ``no_gradcheck`` says why the program is no pure function of its leaves, where it is none. ``judged`` is
    whether the plugin compares the gradients: not where the right ones depend on what the author meant, and
    not where a graph compiled by Inductor refuses to run twice. ``code`` is ``None`` where there is nothing
    to find, or, for a silent kind, where the plugin is known not to see it.
    """

    name: str
    plain: Plain
    code: str | None
    no_gradcheck: str | None = None
    judged: bool = True
    compiled: bool = False


KINDS: tuple[Kind, ...] = (
    Kind("data_write", "silent", "INP102"),
    Kind("numpy_write", "silent", "INP102"),
    Kind("from_numpy_refill", "silent", "INP102"),
    Kind("dlpack_write", "silent", "INP102"),
    Kind("ctypes_write", "silent", "INP102"),
    Kind("storage_write", "silent", "INP102"),
    Kind("preserved_version", "silent", "INP102"),
    Kind("preserved_buffer", "silent", "INP102"),
    Kind("foreach_under_mode", "silent", "INP102"),
    Kind("kron", "silent", "INP102"),
    Kind("batchnorm_modes", "silent", "INP102"),
    Kind("grad_unscale", "silent", "INP102"),
    Kind("compiled_input", "silent", "INP102", CHANGES_LEAF, judged=False, compiled=True),
    Kind("conv_data_swap", "silent", "INP103", CHANGES_LEAF),
    Kind("fused_sgd", "silent", "INP103", STEPS),
    Kind("fused_adamw", "silent", "INP103", STEPS),
    Kind("ctx_attribute", "silent", "INP201"),
    Kind("ctx_numpy", "silent", "INP201"),
    Kind("swap_tensors", "silent", "INP201"),
    Kind("not_marked_dirty", "silent", "INP202", judged=False),
    Kind("grad_output_shared", "silent", "INP203"),
    Kind("tensor_hook", "silent", "INP203"),
    Kind("module_hook", "silent", "INP203"),
    Kind("module_pre_hook", "silent", "INP203"),
    Kind("node_prehook", "silent", "INP203"),
    Kind("checkpoint_dict", "silent", "INP204"),
    Kind("checkpoint_rebind", "silent", "INP204"),
    Kind("checkpoint_parameter", "silent", "INP204", CHANGES_LEAF),
    Kind("reentrant_parameter", "silent", "INP204", CHANGES_LEAF),
    Kind("save_on_cpu", "silent", "INP205"),
    Kind("hooks_alias", "silent", "INP205"),
    Kind("hooks_store", "silent", "INP205"),
    Kind("relu_skip", "raises", "INP101"),
    Kind("clamp_inplace", "raises", "INP101"),
    Kind("plain_step", "raises", "INP103", STEPS),
    Kind("leaf_inplace", "raises", "INP104", CHANGES_LEAF),
    Kind("view_inplace", "raises", "INP105"),
    Kind("restored", "right", None),
    Kind("positive_relu", "right", None),
    Kind("linear_data_swap", "right", None, CHANGES_LEAF),
    Kind("autocast_step", "right", None, CHANGES_LEAF),
    Kind("raw_saved_hooks", "right", None),
    Kind("grad_output_leaf", "right", None),
    Kind("leaf_hook", "right", None),
)
