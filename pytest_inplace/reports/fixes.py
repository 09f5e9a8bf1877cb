"""What to write instead: one piece of advice for each way of writing, read off the line that wrote."""

from __future__ import annotations

import ast
import re

from pytest_inplace.reports.findings import Site

_GENERAL = "write to a copy (`.clone()`), or write before the value is used in the forward pass"

_INSTEAD = {
    "INP301": "compare this operator on both devices with these inputs; another way to write it, or another "
    "version of torch, may agree",
    "INP302": "write to a copy: what autograd saves is up to each device",
    "INP201": "keep tensors with `ctx.save_for_backward(...)`, not as attributes: "
    "autograd then checks their version",
    "INP202": "call `ctx.mark_dirty(x)` in forward, return `x` and use what apply() returns, "
    "or write to a copy",
    "INP203": "compute a new tensor (`grad = grad * scale`) and return that: "
    "what backward and hooks are given may be shared",
    "INP204": "let the checkpointed function change nothing that it reads again: write to copies inside it, "
    "and change parameters and buffers only after backward()",
    "INP205": "let the pack hook keep a copy (`x.detach().clone()`), "
    "or do not write to tensors saved under it",
    "INP206": "take the write out of the block, or do not declare this tensor frozen",
}


def suggest(code: str, modified: Site | None) -> str:
    """Advice for a finding, from its rule and the source of the line that wrote the tensor."""
    if code == "INP104":
        return (
            "update the parameter inside `with torch.no_grad():`, or let an optimizer do it; "
            "if the result is to be differentiated, compute it out of place"
        )
    if code == "INP105":
        return (
            "compute the result out of place (`q = q * scale`), or `.clone()` the view before writing to it; "
            "autograd cannot follow a write through this kind of view"
        )
    if code in _INSTEAD:
        return _INSTEAD[code]
    source = (modified.source or "").strip() if modified is not None else ""
    for recognise in (_step, _data, _foreign, _activation, _augmented, _item, _method):
        advice = recognise(source)
        if advice:
            return advice
    if code == "INP103":
        return "call backward() before the weights change, or run the forward pass again after the change"
    return _GENERAL


def _statement(source: str) -> ast.stmt | None:
    try:
        return ast.parse(f"{source} pass" if source.endswith(":") else source).body[0]
    except (SyntaxError, IndexError, ValueError):
        return None


def _step(source: str) -> str | None:
    if re.search(r"\.step\(", source):
        return (
            "call backward() of every loss that still needs these weights before the optimizer steps, "
            "or compute that loss again after the step (a `.detach()` cuts off a graph that no one needs)"
        )
    return None


def _data(source: str) -> str | None:
    if re.search(r"\.data\b", source):
        return (
            "`.data` hides the write from autograd. Write to a copy instead (`y = x.clamp(...)`, "
            "`x = x.clone()`), or change parameters under `torch.no_grad()` after backward()"
        )
    return None


def _foreign(source: str) -> str | None:
    if re.search(r"numpy|np\.|dlpack", source):
        return "the array shares memory with the tensor: copy it first (`x.detach().numpy().copy()`)"
    return None


def _activation(source: str) -> str | None:
    if re.search(r"inplace\s*=\s*True", source):
        return "drop `inplace=True` here: the value that it overwrites is needed for the gradient"
    return None


def _augmented(source: str) -> str | None:
    statement = _statement(source)
    if isinstance(statement, ast.AugAssign) and not isinstance(statement.target, ast.Subscript):
        target, value = ast.unparse(statement.target), ast.unparse(statement.value)
        operator = ast.unparse(ast.BinOp(ast.Name("a"), statement.op, ast.Name("b"))).split()[1]
        if isinstance(statement.value, ast.BinOp | ast.IfExp | ast.Compare | ast.BoolOp):
            value = f"({value})"
        return f"write `{target} = {target} {operator} {value}`: a new tensor; the saved one stays as it was"
    return None


def _item(source: str) -> str | None:
    statement = _statement(source)
    target: ast.expr | None = None
    if isinstance(statement, ast.Assign):
        target = statement.targets[0]
    elif isinstance(statement, ast.AugAssign):
        target = statement.target
    if isinstance(target, ast.Subscript):
        owner = ast.unparse(target.value)
        return (
            f"write to a copy (`{owner} = {owner}.clone()` before this line), use `torch.where`, or collect "
            "the pieces in a list and `torch.stack` or `torch.cat` them"
        )
    return None


def _method(source: str) -> str | None:
    statement = _statement(source)
    if statement is None:
        return None
    for node in ast.walk(statement):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            method = node.func.attr
            if method.endswith("_") and not method.endswith("__"):
                owner, arguments = (
                    ast.unparse(node.func.value),
                    ", ".join(
                        [ast.unparse(a) for a in node.args]
                        + [f"{k.arg}={ast.unparse(k.value)}" for k in node.keywords]
                    ),
                )
                if method in ("copy_", "zero_", "fill_", "normal_", "uniform_", "set_"):
                    return f"write to a copy (`{owner} = {owner}.clone()` first), or do this after backward()"
                return f"write `{owner} = {owner}.{method[:-1]}({arguments})` instead of `{method}`"
            if any(k.arg == "out" for k in node.keywords):
                return "drop `out=` and bind the result to a name of its own"
    return None
