"""The nodes of a tree, and the tree with a blank next to each keyword: `if(a)` is `if (a)`, as parentheses may go."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from functools import cache, lru_cache
from typing import Any, TypeVar, overload

import libcst as cst

Node = TypeVar("Node", bound=cst.CSTNode)
Positions = dict[cst.CSTNode, tuple[int, int]]
_KEYWORDS = (
    *(cst.And, cst.Assert, cst.Await, cst.CompFor, cst.CompIf, cst.Del, cst.ExceptHandler, cst.For, cst.From, cst.If),
    *(cst.IfExp, cst.In, cst.Is, cst.IsNot, cst.Not, cst.NotIn, cst.Or, cst.While, cst.With),
)


@overload
def list_nodes(node: cst.CSTNode, *, but: tuple[type[cst.CSTNode], ...] = ()) -> tuple[cst.CSTNode, ...]: ...
@overload
def list_nodes(
    node: cst.CSTNode, kind: type[Node], /, *, but: tuple[type[cst.CSTNode], ...] = ()
) -> tuple[Node, ...]: ...
@overload
def list_nodes(node: cst.CSTNode, *kinds: type[Any], but: tuple[type[cst.CSTNode], ...] = ()) -> tuple[Any, ...]: ...
def list_nodes(node: cst.CSTNode, *kinds: type[Any], but: tuple[type[cst.CSTNode], ...] = ()) -> tuple[Any, ...]:
    """Return a node and all below it in the order of the source; blanks, comments and punctuation are left out.

    Args:
        node: the node.
        kinds: what nodes are wanted; all by default.
        but: kinds of nodes that are left out with all that is below them.
    """
    return _list_of_kinds(node, kinds, but) if kinds or but else _list_all(node)


# A tree is never changed, and is searched some forty times. `isinstance` is slow for libcst's abstract classes.
@lru_cache(1 << 15)
def _list_all(node: cst.CSTNode) -> tuple[cst.CSTNode, ...]:
    return tuple(_list_outside(node, frozenset()))


@lru_cache(1 << 15)
def _list_of_kinds(
    node: cst.CSTNode, kinds: tuple[type[cst.CSTNode], ...], but: tuple[type[cst.CSTNode], ...]
) -> tuple[cst.CSTNode, ...]:
    wanted = list_kinds_below(kinds or (cst.CSTNode,))
    return tuple(
        n for n in (_list_outside(node, list_kinds_below(but)) if but else _list_all(node)) if type(n) in wanted
    )


def _list_outside(node: cst.CSTNode, but: frozenset[type]) -> list[cst.CSTNode]:
    found, waiting = [], [node]
    while waiting:
        first = waiting.pop()
        if type(first) not in but:
            found.append(first)
            waiting += list_children(first)
    return found


@cache
def list_kinds_below(kinds: tuple[type[cst.CSTNode], ...]) -> frozenset[type]:
    """Return these kinds of nodes and all that are derived from them."""
    found: set[type] = set()
    waiting: list[type] = [*kinds]
    while waiting:
        first = waiting.pop()
        found.add(first)
        waiting += first.__subclasses__()
    return frozenset(found)


@lru_cache(1 << 17)
def list_children(node: cst.CSTNode) -> tuple[cst.CSTNode, ...]:
    """Return the nodes right below a node, the last first; libcst would visit the node, which is slow."""
    found: list[cst.CSTNode] = []
    for name in _list_node_fields(type(node)):
        value = getattr(node, name)
        if isinstance(value, (tuple, list)):
            found += [v for v in value if type(v) in _KINDS]
        elif type(value) in _KINDS:
            found.append(value)
    return tuple(reversed(found))


@lru_cache(1 << 12)
def collect_names(node: cst.CSTNode) -> frozenset[str]:
    """Return all names in a node, those of attributes and keywords too."""
    return frozenset(n.value for n in list_nodes(node, cst.Name))


def forget_nodes() -> None:
    """Clear the caches of searched trees."""
    for found in (_list_all, _list_of_kinds, list_children, collect_names):
        found.cache_clear()


def clone(node: Node) -> Node:
    """Return a copy of a node and of all below it; blanks and punctuation, which have no positions, are shared."""
    parts: dict[str, object] = {}
    for name in _list_node_fields(type(node)):
        value = getattr(node, name)
        if type(value) in _KINDS:
            parts[name] = clone(value)
        elif isinstance(value, (tuple, list)) and value:
            parts[name] = [clone(v) if type(v) in _KINDS else v for v in value]
    return _copy_with(node, parts)


def _copy_with(node: Node, parts: Mapping[str, object]) -> Node:
    """Return a copy with some parts put in, without libcst's validation of each new node."""
    made = object.__new__(type(node))
    for name in _list_fields(type(node)):
        object.__setattr__(made, name, parts[name] if name in parts else getattr(node, name))
    return made


@cache
def _list_fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    return tuple(f.name for f in fields(kind))


def replace_parts(node: Node, **parts: object) -> Node:
    """Return the node with other parts, which are not checked; the node itself if they are its own."""
    return node if all(getattr(node, name) is part for name, part in parts.items()) else _copy_with(node, parts)


class Rewriter:
    """A tree made anew from the inside out: `leave_Name(old, new)` says what takes the place of a name.

    As libcst's transformer, for expressions whose blanks stay, in a tenth of its time.
    """

    def rewrite(self, node: cst.CSTNode) -> Any:
        """Return what takes the place of a node."""
        parts: dict[str, object] = {}
        for name in _list_node_fields(type(node)):
            value = getattr(node, name)
            if type(value) in _KINDS:
                parts[name] = self.rewrite(value)
            elif isinstance(value, (tuple, list)) and value:
                made = [self.rewrite(v) if type(v) in _KINDS else v for v in value]
                parts[name] = [v for v in made if not isinstance(v, cst.RemovalSentinel)]
        leave = getattr(self, f"leave_{type(node).__name__}", None)
        new = _copy_with(node, parts)
        return new if leave is None else leave(node, new)


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


def find_small_statement(statement: cst.CSTNode | None) -> cst.BaseSmallStatement | None:
    """Return the one small statement of a line."""
    return statement.body[0] if isinstance(statement, cst.SimpleStatementLine) and len(statement.body) == 1 else None


def list_small_statements(statements: Iterable[cst.CSTNode]) -> list[Any]:
    """Return the small statements of lines, and compound statements as they are."""
    return [x for s in statements for x in (s.body if isinstance(s, cst.SimpleStatementLine) else [s])]


@cache
def _list_node_fields(kind: type[cst.CSTNode]) -> tuple[str, ...]:
    """Return the fields of such nodes that hold others, in the order of the source."""
    return _IN_ORDER.get(kind) or tuple(f.name for f in fields(kind) if not _LAYOUT.fullmatch(f.name))


_KINDS = list_kinds_below((cst.CSTNode,))


class _BlankAdder(cst.CSTTransformer):
    """A transformer that adds a blank wherever a keyword touches a bracket; new nodes have the positions of the old."""

    def __init__(self, positions: Positions) -> None:
        super().__init__()
        self.positions = positions

    def on_leave(self, original_node: cst.CSTNode, updated_node: cst.CSTNode) -> cst.CSTNode:  # type: ignore[override] # no flattening here
        blanks = _find_missing_blanks(updated_node)
        made = updated_node.with_changes(**blanks) if blanks else updated_node
        if original_node in self.positions:
            self.positions[made] = self.positions[original_node]
        return made


def add_blanks(tree: cst.Module, positions: Positions) -> cst.Module:
    """Return the module with a blank next to each keyword; its new nodes get their positions."""
    lacking = [any(map(_find_missing_blanks, list_nodes(s))) for s in tree.body]
    if not any(lacking):
        return tree
    body = [s.visit(_BlankAdder(positions)) if lacks else s for s, lacks in zip(tree.body, lacking, strict=True)]
    return replace_parts(tree, body=body)


_SPACED: frozenset[type[cst.CSTNode]] = frozenset({*_KEYWORDS, cst.Yield})


def _find_missing_blanks(node: cst.CSTNode) -> dict[str, cst.SimpleWhitespace]:
    """Return the blanks that one would expect around a node's keywords and that are not there."""
    if type(node) not in _SPACED:
        return {}
    if isinstance(node, cst.Yield):
        return {"whitespace_after_yield": cst.SimpleWhitespace(" ")} if _is_empty(node.whitespace_after_yield) else {}
    return {name: blank for name, blank in _list_usual_blanks(type(node)) if _is_empty(getattr(node, name))}


@cache
def _list_usual_blanks(kind: type[cst.CSTNode]) -> list[tuple[str, cst.SimpleWhitespace]]:
    """Return the blanks that nodes of a kind usually have."""
    usual = [(f.name, f.default_factory()) for f in fields(kind) if f.default_factory is not MISSING]
    return [(name, blank) for name, blank in usual if isinstance(blank, cst.SimpleWhitespace) and not blank.empty]


def _is_empty(node: object) -> bool:
    return isinstance(node, cst.SimpleWhitespace) and node.empty
