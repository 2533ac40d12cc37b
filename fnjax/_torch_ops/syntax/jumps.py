"""Searches for statements that jump: return, break and continue."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import Any

from fnjax._torch_ops.syntax.trees import LOOPS, SCOPES, list_blocks, walk

Kinds = tuple[type[ast.stmt], ...]


def has(body: Iterable[ast.AST], kind: type[ast.AST] | tuple[type[ast.AST], ...]) -> bool:
    """Return whether statements contain one of a kind, outside of inner functions."""
    return any(isinstance(n, kind) for n in walk(body))


def has_loop_jump(body: Sequence[ast.stmt], kind: Any) -> bool:
    """Return whether a loop's body has a break or continue of this loop, not of an inner one."""
    for statement in body:
        if isinstance(statement, kind):
            return True
        if isinstance(statement, (*LOOPS, *SCOPES)):
            if isinstance(statement, LOOPS) and has_loop_jump(statement.orelse, kind):
                return True
            continue
        for block in list_blocks(statement):
            if has_loop_jump(block, kind):
                return True
    return False


def ends(body: Sequence[ast.stmt], kinds: Kinds) -> bool:
    """Return whether a block always ends in a jump of these kinds, or a raise."""
    if not body:
        return False
    last = body[-1]
    if isinstance(last, (*kinds, ast.Raise)):
        return True
    return isinstance(last, ast.If) and ends(last.body, kinds) and ends(last.orelse, kinds)
