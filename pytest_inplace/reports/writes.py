"""What to write instead of each common kind of write, and where else to put it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

import libcst as cst

from pytest_inplace.reports.findings import Finding
from pytest_inplace.reports.rewriting import Source, code, dotted, statement, walk

# Methods that make nothing of what was there before, so that there is nothing to compute out of place.
_FILLING = {"copy_", "zero_", "fill_", "normal_", "uniform_", "set_", "random_", "bernoulli_", "exponential_"}

Suggestion = tuple[str, bytes]


def rewrites(source: Source, finding: Finding) -> Iterator[Suggestion]:
    """Edits of the statement that wrote, so that what was saved stays as it was."""
    assert finding.modified is not None
    where = source.statement(finding.modified.line)
    if where is None:
        return
    if finding.code == "INP104":
        yield from _no_grad(source, where)
        return
    small = where.body[0]
    if isinstance(small, cst.AugAssign) and not isinstance(small.target, cst.Subscript):
        yield from _augmented(source, where, small)
    yield from _activations(source, where)
    yield from _methods(source, where)
    for owner in _written(source, small):
        for copy in ("clone", "copy") if source.mentions("np", "numpy") else ("clone",):
            first = statement(f"{code(owner)} = {code(owner)}.{copy}()")
            first = first.with_changes(leading_lines=where.leading_lines)
            yield (
                f"write to a copy of {code(owner)}",
                source.rewritten({where: [first, where.with_changes(leading_lines=[])]}),
            )
    yield from _constructors(source)


def _augmented(source: Source, where: cst.SimpleStatementLine, small: cst.AugAssign) -> Iterator[Suggestion]:
    """``x += y`` becomes ``x = x + y``."""
    target = _itself(small.target)
    operator = getattr(cst, type(small.operator).__name__.removesuffix("Assign"))()
    if dotted(target):
        value = cst.BinaryOperation(target.deep_clone(), operator, _operand(small.value, operator))
        assign = cst.Assign([cst.AssignTarget(target)], value)
        yield "compute a new tensor", source.rewritten({small: assign})


def _operand(value: cst.BaseExpression, operator: cst.BaseBinaryOp) -> cst.BaseExpression:
    """The right-hand side, in parentheses unless it certainly binds more tightly."""
    tight = (cst.Name, cst.Attribute, cst.Call, cst.Subscript, cst.BaseNumber, cst.List, cst.BaseString)
    product = isinstance(operator, cst.Add | cst.Subtract) and (
        isinstance(value, cst.BinaryOperation)
        and isinstance(value.operator, cst.Multiply | cst.Divide | cst.MatrixMultiply | cst.Power)
    )
    if product or value.lpar or isinstance(value, tight):
        return value
    return value.with_changes(lpar=[cst.LeftParen()], rpar=[cst.RightParen()])


def _no_grad(source: Source, where: cst.SimpleStatementLine) -> Iterator[Suggestion]:
    """The update, and those that follow it directly, inside ``with torch.no_grad():``."""
    block = source.block(where)
    if block is None or not source.mentions("torch"):
        return
    body = list(block.body)
    start = body.index(where)
    end = start + 1
    while end < len(body) and _is_update(body[end]):
        end += 1
    with_ = cast("cst.With", cst.parse_statement("with torch.no_grad():\n    pass\n"))
    first = where.with_changes(leading_lines=[])
    inner = cst.IndentedBlock(body=[first, *body[start + 1 : end]])
    with_ = with_.with_changes(body=inner, leading_lines=where.leading_lines)
    new = cast("list[cst.BaseStatement]", [*body[:start], with_, *body[end:]])
    yield "update under no_grad", source.with_block(block, new)


def _is_update(node: cst.CSTNode) -> bool:
    if not isinstance(node, cst.SimpleStatementLine):
        return False
    return all(isinstance(small, cst.AugAssign) for small in node.body)


def _activations(source: Source, where: cst.SimpleStatementLine) -> Iterator[Suggestion]:
    """``F.relu(x, inplace=True)`` becomes ``F.relu(x)``."""
    small = where.body[0]
    for call in _calls(where):
        kept = _without_inplace(call)
        if kept is None:
            continue
        first = call.args[0].value if call.args else None
        if isinstance(small, cst.Expr) and small.value is call:
            if first is not None and dotted(first):
                assign = cst.Assign([cst.AssignTarget(first.deep_clone())], kept)
                yield "drop inplace=True", source.rewritten({small: assign})
        else:
            yield "drop inplace=True", source.rewritten({call: kept})


def _constructors(source: Source) -> Iterator[Suggestion]:
    """``nn.ReLU(inplace=True)`` anywhere in the file: the line that wrote only calls the module."""
    found: dict[cst.CSTNode, cst.Call] = {}
    for call in _calls(source.module):
        kept = _without_inplace(call)
        if kept is not None:
            found[call] = kept
    for made, kept in found.items():
        yield "drop inplace=True where the module is made", source.rewritten({made: kept})
    if len(found) > 1:
        yield "drop inplace=True wherever modules are made", source.rewritten(found)


def _without_inplace(call: cst.Call) -> cst.Call | None:
    kept = [arg for arg in call.args if not _is_inplace(arg)]
    if len(kept) == len(call.args):
        return None
    if kept:
        kept[-1] = kept[-1].with_changes(comma=call.args[-1].comma)
    return call.with_changes(args=kept)


def _is_inplace(arg: cst.Arg) -> bool:
    return arg.keyword is not None and arg.keyword.value == "inplace" and code(arg.value) == "True"


def _methods(source: Source, where: cst.SimpleStatementLine) -> Iterator[Suggestion]:
    """``x.mul_(y)`` becomes ``x = x.mul(y)``, ``torch.relu_(x)`` becomes ``x = torch.relu(x)``."""
    small = where.body[0]
    for call, method, tensor in _in_place(source, where):
        name = method.attr.value
        if name in _FILLING:
            continue
        owner = _itself(method.value) if tensor is method.value else method.value
        out_of_place = call.with_changes(func=method.with_changes(value=owner, attr=cst.Name(name[:-1])))
        if isinstance(small, cst.Expr) and small.value is call:
            target = _itself(tensor)
            if dotted(target):
                assign = cst.Assign([cst.AssignTarget(target.deep_clone())], out_of_place)
                yield "compute a new tensor", source.rewritten({small: assign})
        else:
            yield "compute a new tensor", source.rewritten({call: out_of_place})


def _in_place(
    source: Source, node: cst.CSTNode
) -> Iterator[tuple[cst.Call, cst.Attribute, cst.BaseExpression]]:
    """The calls of methods, and of functions of a module, whose name ends in ``_``, with what they write."""
    for call in _calls(node):
        method = call.func
        if isinstance(method, cst.Attribute):
            name = method.attr.value
            if name.endswith("_") and not name.endswith("__"):
                if not source.is_module(method.value):
                    yield call, method, method.value
                elif call.args and call.args[0].keyword is None:
                    yield call, method, call.args[0].value


def _written(source: Source, small: cst.BaseSmallStatement) -> Iterator[cst.BaseExpression]:
    """What a statement writes to, where that has a name of its own."""
    owners = [_owner(tensor) for _, _, tensor in _in_place(source, small)]
    targets: list[cst.BaseExpression] = []
    if isinstance(small, cst.Assign):
        targets = [each.target for each in small.targets]
    elif isinstance(small, cst.AugAssign):
        targets = [small.target]
    owners += [_owner(target) for target in targets if isinstance(target, cst.Subscript)]
    yield from (owner for owner in owners if dotted(owner))


def _itself(tensor: cst.BaseExpression) -> cst.BaseExpression:
    """The tensor behind ``x.data`` and ``x.detach()``."""
    while True:
        if isinstance(tensor, cst.Attribute) and tensor.attr.value == "data":
            tensor = tensor.value
        elif (
            isinstance(tensor, cst.Call)
            and isinstance(tensor.func, cst.Attribute)
            and tensor.func.attr.value == "detach"
            and not tensor.args
        ):
            tensor = tensor.func.value
        else:
            return tensor


def _owner(part: cst.BaseExpression) -> cst.BaseExpression:
    """What ``x[i]`` is a part of."""
    owner = _itself(part)
    while isinstance(owner, cst.Subscript):
        owner = _itself(owner.value)
    return owner


def _calls(node: cst.CSTNode) -> Iterator[cst.Call]:
    return (inner for inner in walk(node) if isinstance(inner, cst.Call))


def moves(source: Source, finding: Finding) -> Iterator[Suggestion]:
    """Edits of the order of statements: backward first, then what writes."""
    assert finding.used is not None
    assert finding.modified is not None
    same_file = finding.used.path == finding.modified.path
    backward = source.statement(finding.used.line)
    block = source.block(backward) if backward is not None else None
    if backward is None or block is None:
        return
    body = cast("list[cst.BaseStatement]", list(block.body))
    end = body.index(backward)
    writers = [
        i
        for i in range(end)
        if (same_file and source.covers(body[i], finding.modified.line))
        or any(_name(call.func) == finding.modified.function for call in _calls(body[i]))
    ]
    if not writers:
        return
    writer = writers[-1]
    yield from _backward_first(source, block, body, writer, end)
    moved = [*body[:writer], *body[writer + 1 : end + 1], body[writer], *body[end + 1 :]]
    yield "call backward() before the write", source.with_block(block, moved)


def _backward_first(
    source: Source,
    block: cst.IndentedBlock | cst.Module,
    body: list[cst.BaseStatement],
    writer: int,
    end: int,
) -> Iterator[Suggestion]:
    """An optimizer's step: the other backward goes before its ``zero_grad()``, which clears its traces."""
    steps = [call for call in _calls(body[writer]) if _name(call.func) == "step"]
    if not steps:
        return
    step = steps[0].func
    receiver = code(step.value) if isinstance(step, cst.Attribute) else ""
    clears = [i for i in range(writer) if _clears(body[i], receiver)]
    if not clears:
        return
    start = end
    while start - 1 > writer and _clears(body[start - 1], None):
        start -= 1
    clear = clears[-1]
    moved = [*body[:clear], *body[start : end + 1], *body[clear:start], *body[end + 1 :]]
    yield "call backward() before the other network's step", source.with_block(block, moved)


def _clears(node: cst.CSTNode, receiver: str | None) -> bool:
    """Whether it is ``receiver.zero_grad()``, or that of anything."""
    for call in _calls(node):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value == "zero_grad":
            return receiver is None or code(call.func.value) == receiver
    return False


def _name(function: cst.BaseExpression) -> str | None:
    if isinstance(function, cst.Attribute):
        return function.attr.value
    return function.value if isinstance(function, cst.Name) else None
