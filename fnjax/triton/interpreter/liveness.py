"""Liveness analysis: the names that a loop carries from one iteration to the next, or to the code after it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence

Loop = ast.For | ast.While
Names = frozenset[str]


@functools.cache
def carried(function: ast.FunctionDef, loop: Loop) -> tuple[Names, Names]:
    """Return two sets of names for a loop in a function: live at the start of its body, and live after the loop.

    Only names that the loop sets are in them. Names that are used within one iteration are in neither.
    """
    after: dict[Loop, Names] = {}
    _before(function.body, frozenset(), after)
    live = after[loop] | (read_in(loop.test) if isinstance(loop, ast.While) else frozenset())
    return _before(loop.body, live, {}) & frozenset(assigned(*loop.body)), live & frozenset(assigned(loop))


def _before(statements: Sequence[ast.stmt], live: Names, after: dict[Loop, Names]) -> Names:
    """Return the names that are live before some statements, and note in `after` those live after each loop.

    Args:
        statements: in their order.
        live: names that are live after them.
        after: is filled: by loop, the names that are live after it.
    """
    for node in reversed(statements):
        if isinstance(node, ast.If):
            live = _before(node.body, live, after) | _before(node.orelse, live, after) | read_in(node.test)
        elif isinstance(node, ast.For | ast.While):
            after[node] = after.get(node, frozenset()) | live
            target = frozenset(assigned(node.target)) if isinstance(node, ast.For) else frozenset()
            while True:  # fixpoint: an iteration may read what the one before it sets
                test = read_in(node.test) if isinstance(node, ast.While) else frozenset()
                found = live | test | (_before(node.body, live | test, after) - target)
                if found == live:
                    break
                live = found
            live = live | (read_in(node.iter) if isinstance(node, ast.For) else frozenset())
        elif isinstance(node, ast.Return):
            live = frozenset() if node.value is None else read_in(node.value)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            kept = live if node.value is None else live.difference(assigned(node))
            live = kept | (frozenset() if node.value is None else read_in(node.value))
        elif isinstance(node, ast.AugAssign):
            live = live.union(assigned(node)) | read_in(node.value)
        else:
            live = live | read_in(node)
    return live


def read_in(node: ast.AST) -> Names:
    """Return the names that a node of a syntax tree reads."""
    return frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))


@functools.cache
def _assigned(node: ast.AST) -> tuple[str, ...]:
    names = (n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    return tuple(dict.fromkeys(names))


def assigned(*nodes: ast.AST) -> list[str]:
    """Return the names that statements set, in their order."""
    return list(dict.fromkeys(name for node in nodes for name in _assigned(node)))
