"""One source file as a tree that can be edited and written back with everything else as it was."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TypeGuard, cast

import libcst as cst
from libcst.metadata import MetadataWrapper, ParentNodeProvider, PositionProvider

Replacements = Mapping[cst.CSTNode, Sequence[cst.BaseStatement] | cst.CSTNode]
Block = cst.IndentedBlock | cst.Module


class Source:
    """A parsed file.

    Raises:
        ValueError: if it cannot be parsed; it says why.
    """

    def __init__(self, data: bytes) -> None:
        self.data = data
        try:
            wrapper = MetadataWrapper(cst.parse_module(data))
        except (cst.ParserSyntaxError, UnicodeDecodeError, SyntaxError, LookupError) as error:
            why = str(error).strip().splitlines() or [type(error).__name__]
            raise ValueError(f"libcst cannot parse it: {why[0]}") from None
        self.module = wrapper.module
        self.encoding = self.module.encoding
        self._positions = wrapper.resolve(PositionProvider)
        self._parents = wrapper.resolve(ParentNodeProvider)
        self._imported = {name for node in walk(self.module) for name in _bound(node)}

    def mentions(self, *names: str) -> bool:
        """Whether any of these names is used in the file."""
        return any(isinstance(node, cst.Name) and node.value in names for node in walk(self.module))

    def is_module(self, node: cst.CSTNode) -> bool:
        """Whether a dotted name begins with something that the file imports."""
        while isinstance(node, cst.Attribute):
            node = node.value
        return isinstance(node, cst.Name) and node.value in self._imported

    def covers(self, node: cst.CSTNode, line: int) -> bool:
        place = self._positions[node]
        return bool(place.start.line <= line <= place.end.line)

    def statement(self, line: int) -> cst.SimpleStatementLine | None:
        """The simple statement on this line, if it stands there alone."""
        found = [
            n for n in walk(self.module) if isinstance(n, cst.SimpleStatementLine) and self.covers(n, line)
        ]
        return found[0] if len(found) == 1 and len(found[0].body) == 1 else None

    def block(self, statement: cst.CSTNode) -> Block | None:
        """The block that a statement is directly in."""
        parent = self._parents[statement]
        return parent if isinstance(parent, cst.IndentedBlock | cst.Module) else None

    def rewritten(self, replacements: Replacements) -> bytes:
        """The file with nodes replaced, each by another one or by a sequence of statements."""
        return self.module.visit(_Replacing(replacements)).bytes

    def with_block(self, block: Block, body: Sequence[cst.BaseStatement]) -> bytes:
        """The file with other statements in one block."""
        if isinstance(block, cst.Module):
            return block.with_changes(body=body).bytes
        return self.rewritten({block: block.with_changes(body=body)})


class _Replacing(cst.CSTTransformer):
    def __init__(self, replacements: Replacements) -> None:
        super().__init__()
        self._replacements = replacements

    def on_leave(  # type: ignore[override]
        self, original_node: cst.CSTNode, updated_node: cst.CSTNode
    ) -> cst.CSTNode | cst.FlattenSentinel[cst.BaseStatement]:
        new = self._replacements.get(original_node)
        if new is None:
            return updated_node
        return new if isinstance(new, cst.CSTNode) else cst.FlattenSentinel(new)


def walk(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """The node and everything in it, outermost first."""
    stack = [node]
    while stack:
        current = stack.pop()
        yield current
        stack.extend(reversed(current.children))


def _bound(node: cst.CSTNode) -> Iterator[str]:
    """The names that an import statement binds."""
    if isinstance(node, cst.ImportAlias):
        bound: cst.BaseExpression = node.asname.name if node.asname is not None else node.name
        while isinstance(bound, cst.Attribute):
            bound = bound.value
        if isinstance(bound, cst.Name):
            yield bound.value


def dotted(node: cst.CSTNode) -> TypeGuard[cst.Name | cst.Attribute]:
    """Whether it is a name or an attribute of names, which can be bound anew."""
    inner = node
    while isinstance(inner, cst.Attribute):
        inner = inner.value
    return isinstance(inner, cst.Name)


def code(node: cst.CSTNode) -> str:
    return cst.Module(body=[]).code_for_node(node)


def statement(text: str) -> cst.SimpleStatementLine:
    return cast("cst.SimpleStatementLine", cst.parse_statement(text))
