"""The nodes of a tree, and the tree with a blank beside each keyword: `if(a)` is `if (a)`, as parentheses may go."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import MISSING, fields
from functools import cache, lru_cache

import libcst as cst

Positions = dict[cst.CSTNode, tuple[int, int]]
_KEYWORDS = (
    *(cst.And, cst.Assert, cst.Await, cst.CompFor, cst.CompIf, cst.Del, cst.ExceptHandler, cst.For, cst.From, cst.If),
    *(cst.IfExp, cst.In, cst.Is, cst.IsNot, cst.Not, cst.NotIn, cst.Or, cst.While, cst.With),
)


def nodes(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """A node and all below it, blanks, comments and punctuation left out."""
    waiting = [node]
    while waiting:
        first = waiting.pop()
        yield first
        waiting.extend(children(first))


@lru_cache(1 << 17)
def children(node: cst.CSTNode) -> tuple[cst.CSTNode, ...]:
    """What stands right below a node, the last first; libcst itself visits the node to find it, which is slow."""
    found: list[cst.CSTNode] = []
    for name in _parts(type(node)):
        value = getattr(node, name)
        if isinstance(value, cst.CSTNode):
            found.append(value)
        elif isinstance(value, (tuple, list)):
            found += [v for v in value if isinstance(v, cst.CSTNode)]
    return tuple(reversed(found))


_LAYOUT = re.compile(
    r"whitespace.*|.*_whitespace|.*lines.*|[lr](par|bracket|brace)|header|footer|.*comma|.*colon|dot|equal"
)
# Where the fields of a node are not in the order of the source.
_IN_ORDER: dict[type[cst.CSTNode], tuple[str, ...]] = {
    cst.Arg: ("keyword", "value"),
    cst.ClassDef: ("decorators", "name", "type_parameters", "bases", "keywords", "body"),
    cst.ExceptHandler: ("type", "name", "body"),
    cst.ExceptStarHandler: ("type", "name", "body"),
    cst.FunctionDef: ("decorators", "asynchronous", "name", "type_parameters", "params", "returns", "body"),
    cst.IfExp: ("body", "test", "orelse"),
    cst.MatchCase: ("pattern", "guard", "body"),
}


@cache
def _parts(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    """The fields of such nodes that hold others, in the order of the source."""
    return _IN_ORDER.get(kind) or tuple(f.name for f in fields(kind) if not _LAYOUT.fullmatch(f.name))


class Located(cst.CSTTransformer):
    """New nodes stand where the old ones stood."""

    def __init__(self, positions: Positions) -> None:
        super().__init__()
        self.positions = positions

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override] # no flattening here
        """The position of the old node is that of the new one, and of what is new in it."""
        made = super().on_leave(original_node, updated_node)
        assert isinstance(made, cst.CSTNode)
        if original_node in self.positions:
            self._put(made, self.positions[original_node])
        return made

    def _put(self, node: cst.CSTNode, position: tuple[int, int]) -> None:
        if node not in self.positions:  # below those that are known, all are
            self.positions[node] = position
            for child in children(node):
                self._put(child, position)


def spaced(tree: cst.Module, positions: Positions) -> cst.Module:
    """The module with a blank wherever a keyword touches a bracket."""
    if not any(_missing(node) for node in nodes(tree)):
        return tree
    made = tree.visit(_Spaced(positions))
    assert isinstance(made, cst.Module)
    return made


class _Spaced(Located):
    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override] # as above
        blanks = _missing(updated_node)
        return super().on_leave(original_node, updated_node.with_changes(**blanks) if blanks else updated_node)


def _missing(node: cst.CSTNode) -> dict[str, cst.SimpleWhitespace]:
    """The blanks that one would expect around a node's keywords and that are not there."""
    if isinstance(node, cst.Yield):
        return {"whitespace_after_yield": cst.SimpleWhitespace(" ")} if _empty(node.whitespace_after_yield) else {}
    if not isinstance(node, _KEYWORDS):
        return {}
    usual = {f.name: f.default_factory() for f in fields(node) if f.default_factory is not MISSING}
    blanks = {name: blank for name, blank in usual.items() if isinstance(blank, cst.SimpleWhitespace)}
    return {name: blank for name, blank in blanks.items() if not blank.empty and _empty(getattr(node, name))}


def _empty(node: object) -> bool:
    return isinstance(node, cst.SimpleWhitespace) and node.empty
