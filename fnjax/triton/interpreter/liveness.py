"""Liveness analysis: the names that a loop carries from one iteration to the next, or to the code after it."""

from __future__ import annotations

import ast
import functools
from collections.abc import Sequence
from typing import Any


@functools.cache
def carried(function: Any, loop: Any) -> Any:
    """Return two sets of names for a loop in a function: live at the start of its body, and live after the loop.

    Only names that the loop sets are in them. Names that are used within one iteration are in neither.
    """
    after: dict[Any, Any] = {}
    _before(function.body, frozenset(), after)
    live = after[loop] | (_read_in(loop.test) if isinstance(loop, ast.While) else frozenset())
    return _before(loop.body, live, {}) & _set_in(loop.body), live & _set_in([loop])


def _before(statements: Sequence[ast.stmt], live: Any, after: Any) -> Any:
    """Return the names that are live before some statements, and note in `after` those live after each loop.

    Args:
        statements: in their order.
        live: names that are live after them.
        after: is filled: by loop, the names that are live after it.
    """
    for node in reversed(statements):
        if isinstance(node, ast.If):
            live = _before(node.body, live, after) | _before(node.orelse, live, after) | _read_in(node.test)
        elif isinstance(node, ast.For | ast.While):
            after[node] = after.get(node, frozenset()) | live
            target = _set_in([node.target]) if isinstance(node, ast.For) else frozenset()
            while True:  # fixpoint: an iteration may read what the one before it sets
                test = _read_in(node.test) if isinstance(node, ast.While) else frozenset()
                found = live | test | (_before(node.body, live | test, after) - target)
                if found == live:
                    break
                live = found
            live = live | (_read_in(node.iter) if isinstance(node, ast.For) else frozenset())
        elif isinstance(node, ast.Return):
            live = frozenset() if node.value is None else _read_in(node.value)
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            kept = live if node.value is None else live - _set_in([node])
            live = kept | (frozenset() if node.value is None else _read_in(node.value))
        elif isinstance(node, ast.AugAssign):
            live = live | _set_in([node]) | _read_in(node.value)
        else:
            live = live | _read_in(node)
    return live


def _read_in(node: Any) -> Any:
    return frozenset(n.id for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Load))


def _set_in(nodes: Any) -> Any:
    return frozenset(
        n.id for node in nodes for n in ast.walk(node) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
    )
