"""Line and column of each node of a parsed module.

LibCST finds them by writing the module out again; its own PositionProvider visits the tree a second time and keeps a
range for each node, which takes three times as long.
"""

from __future__ import annotations

import libcst as cst
from libcst.metadata import PositionProvider
from libcst.metadata.position_provider import PositionProvidingCodegenState

Position = tuple[int, int]


class _Starts(PositionProvidingCodegenState):
    """The state of writing a module out, which notes where each node begins."""

    def __init__(self, tree: cst.Module) -> None:
        super().__init__(tree.default_indent, tree.default_newline, PositionProvider())
        self.found: dict[cst.CSTNode, Position] = {}
        self.begun: list[Position] = []

    def add_token(self, value: str) -> None:
        """Go on after a token."""
        self.tokens.append(value)
        lines = value.count("\n")
        self.line += lines
        self.column = len(value) - value.rfind("\n") - 1 if lines else self.column + len(value)

    def add_indent_tokens(self) -> None:
        """Go on after the indentation of a line."""
        self.tokens += self.indent_tokens
        self.column += sum(map(len, self.indent_tokens))

    def before_codegen(self, node: cst.CSTNode) -> None:
        """Note where a node begins with all its blanks and parentheses."""
        self.begun.append((self.line, self.column + 1))

    def after_codegen(self, node: cst.CSTNode) -> None:
        """Note the position of a written node, unless a more exact one is known."""
        start = self.begun.pop()
        if node not in self.found:
            self.found[node] = start

    def record_syntactic_position(  # type: ignore[override] # a context manager that is no generator
        self, node: cst.CSTNode, *, start_node: cst.CSTNode | None = None, end_node: cst.CSTNode | None = None
    ) -> _Syntactic:
        """Note where a node begins without them."""
        return _Syntactic(self, node, start_node)


class _Syntactic:
    __slots__ = ("first", "node", "start", "state")

    def __init__(self, state: _Starts, node: cst.CSTNode, first: cst.CSTNode | None) -> None:
        self.state, self.node, self.first = state, node, first
        self.start = state.line, state.column + 1

    def __enter__(self) -> None:
        pass

    def __exit__(self, *_: object) -> None:
        found = self.state.found
        found[self.node] = self.start if self.first is None else found[self.first]


def locate_nodes(tree: cst.Module) -> dict[cst.CSTNode, Position]:
    """Return line and column, from 1, of each node of a tree that was just parsed, which has none twice."""
    state = _Starts(tree)
    tree._codegen(state)
    return state.found
