"""PyTorch's own refusals of in-place operations (INP104, INP105), explained: where, and which tensor."""

from __future__ import annotations

import ast
from types import FrameType, TracebackType
from typing import TYPE_CHECKING, Any

from pytest_inplace.engine import values
from pytest_inplace.engine.torch_errors import native_rule
from pytest_inplace.reports import call_sites, fixes
from pytest_inplace.reports.findings import Finding, Site, TensorInfo

if TYPE_CHECKING:
    import torch


def explain(error: BaseException) -> Finding | None:
    """The finding for an error with which PyTorch refused an in-place operation, else ``None``."""
    code = native_rule(str(error)) if isinstance(error, RuntimeError) else None
    if code is None:
        return None
    found = _innermost_user(error.__traceback__)
    modified = call_sites.resolve((found[0].f_code, found[1])) if found else None
    name, tensor = _written(found[0], modified, code) if found and modified else (None, None)
    info = TensorInfo(name, (), "unknown")
    if tensor is not None:
        info = TensorInfo(
            name, tuple(tensor.shape), values.dtype_name(tensor), str(tensor.device), values.is_leaf(tensor)
        )
    return Finding(
        code=code,
        state="confirmed",
        tensor=info,
        modified=modified,
        modified_exact=modified is not None,
        raised=str(error),
        fix=fixes.suggest(code, modified),
    )


def _innermost_user(traceback: TracebackType | None) -> tuple[FrameType, int] | None:
    found = None
    while traceback is not None:
        if not call_sites.is_library(traceback.tb_frame.f_code):
            found = traceback.tb_frame, traceback.tb_lasti
        traceback = traceback.tb_next
    return found


def _written(frame: FrameType, site: Site, code: str) -> tuple[str | None, torch.Tensor | None]:
    """The tensor that the line writes to, looked up by name in the frame; nothing is called for it."""
    import torch

    try:
        tree = ast.parse((site.source or "").strip().rstrip(":"))
    except (SyntaxError, ValueError):
        return None, None
    for node in ast.walk(tree):
        target: Any = None
        if isinstance(node, ast.AugAssign):
            target = node.target
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
            target = node.targets[0]
        elif (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Attribute)
            and node.func.attr.endswith("_")
        ):
            target = node.func.value
        while isinstance(target, ast.Subscript) and not isinstance(_lookup(frame, target), torch.Tensor):
            target = target.value
        found = _lookup(frame, target) if target is not None else None
        if isinstance(found, torch.Tensor):
            return ast.unparse(target), found
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            found = _lookup(frame, node)
            if isinstance(found, torch.Tensor) and (code != "INP104" or found.requires_grad):
                return node.id, found
    return None, None


def _lookup(frame: FrameType, node: ast.AST) -> Any:
    """The value of a name, an attribute path or a constant subscript; ``None`` if it is anything else."""
    import torch

    if isinstance(node, ast.Name):
        return frame.f_locals.get(node.id, frame.f_globals.get(node.id))
    if isinstance(node, ast.Attribute):
        owner = _lookup(frame, node.value)
        if isinstance(owner, torch.nn.Module):
            for store in (owner.__dict__, owner._parameters, owner._buffers, owner._modules):
                if node.attr in store:
                    return store[node.attr]
            return None
        return getattr(owner, "__dict__", {}).get(node.attr)
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        owner = _lookup(frame, node.value)
        if type(owner) in (list, tuple, dict):
            try:
                return owner[node.slice.value]
            except (LookupError, TypeError):
                return None
    return None
