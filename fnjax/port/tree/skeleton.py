"""The control flow of libcst statements as statements of `ast`, as the lowering of jumps reads it.

Only statements that jump, and those around them, are opened. All others are carried along as they are, with their
comments and their places in the source.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import Any

import libcst as cst

from fnjax.port.tree.located import list_children

Jumps = tuple[type[cst.CSTNode], ...]


class Kept(ast.expr):
    """Statement, or a part of one, that stays as it is.

    Attributes:
        node: the node of libcst.
    """

    _fields = ()

    def __init__(self, node: Any) -> None:
        super().__init__()
        self.node = node


def open_blocks(body: Sequence[Any], jumps: Jumps) -> list[ast.stmt] | None:
    """Return the skeleton of statements, or None where one that is no `if`, `for`, `while` or `with` jumps."""
    found: list[ast.stmt] = []
    for node in body:
        if not list_jumps(node, jumps):
            found.append(ast.Expr(Kept(node)))
            continue
        made = _open_line(node) if isinstance(node, cst.SimpleStatementLine) else _open_compound(node, jumps)
        if made is None:
            return None
        found += made
    return found


def _open_line(node: cst.SimpleStatementLine) -> list[ast.stmt]:
    *before, last = node.body
    kinds: dict[type[cst.CSTNode], ast.stmt] = {cst.Break: ast.Break(), cst.Continue: ast.Continue()}
    jump = kinds.get(type(last)) or ast.Return(Kept(node.with_changes(body=[last]) if before else node))
    ending = before and [*before[:-1], before[-1].with_changes(semicolon=cst.MaybeSentinel.DEFAULT)]
    return [*([ast.Expr(Kept(node.with_changes(body=ending)))] if ending else []), jump]


def _open_compound(node: Any, jumps: Jumps) -> list[ast.stmt] | None:
    lines = list_lines(getattr(node, "body", None))
    orelse = getattr(node, "orelse", None)
    others = [orelse] if isinstance(orelse, cst.If) else list_lines(orelse.body) if orelse else []
    body, other = open_blocks(lines, jumps), open_blocks(others, jumps)
    if body is None or other is None:
        return None
    match node:
        case cst.If():
            return [ast.If(Kept(node), body, other)]
        case cst.While():
            return [ast.While(Kept(node), body, other)]
        case cst.For():
            return [ast.For(ast.Name("_", ast.Store()), Kept(node), body, other)]
        case cst.With():
            return [ast.With([ast.withitem(Kept(node))], body)]
    return None


def list_jumps(node: cst.CSTNode, jumps: Jumps) -> list[cst.CSTNode]:
    """Return the jumps of these kinds in a statement, but for those of inner functions and, of loops, inner loops."""
    if isinstance(node, (cst.FunctionDef, cst.Lambda, cst.ClassDef)):
        return []
    if isinstance(node, jumps):
        return [node]
    parts = list_children(node)
    if isinstance(node, (cst.For, cst.While)) and cst.Return not in jumps:
        parts = (node.orelse,) if node.orelse else ()
    return [n for part in parts for n in list_jumps(part, jumps)]


def list_lines(block: cst.BaseSuite | None) -> list[Any]:
    """Return the statements of a block, each on a line of its own."""
    if isinstance(block, cst.SimpleStatementSuite):
        return [cst.SimpleStatementLine([small]) for small in block.body]
    return list(block.body) if block is not None else []


def close_blocks(body: Sequence[ast.stmt]) -> list[Any]:
    """Return the statements of a skeleton."""
    return [_close(statement) for statement in body]


def _close(node: Any) -> Any:
    match node:
        case ast.Expr(Kept() as kept) | ast.Return(Kept() as kept):
            return kept.node
        case ast.Assign([ast.Name() as target], value):
            return cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(cst.Name(target.id))], _close_test(value))])
        case ast.If():
            made = node.test.node if isinstance(node.test, Kept) else cst.If(cst.Name("_"), cst.IndentedBlock([]))
            return made.with_changes(
                test=_close_test(node.test), body=_close_block(node.body), orelse=_close_else(node)
            )
        case ast.While(Kept() as kept) | ast.For(iter=Kept() as kept):
            return kept.node.with_changes(body=_close_block(node.body), orelse=_close_else(node))
        case ast.With([ast.withitem(Kept() as kept)]):
            return kept.node.with_changes(body=_close_block(node.body))
    return cst.parse_statement(ast.unparse(node))


def _close_test(node: ast.expr) -> cst.BaseExpression:
    if not isinstance(node, Kept):
        return cst.parse_expression(ast.unparse(node))
    return node.node.test if isinstance(node.node, cst.If) else node.node


def _close_block(body: list[ast.stmt]) -> cst.IndentedBlock:
    return cst.IndentedBlock(close_blocks(body or [ast.Pass()]))


def _close_else(node: ast.If | ast.While | ast.For) -> cst.Else | cst.If | None:
    if not node.orelse:
        return None
    only = node.orelse[0]
    if len(node.orelse) == 1 and isinstance(only, ast.If) and isinstance(node, ast.If) and isinstance(only.test, Kept):
        made: cst.If = _close(only)
        return made
    before = node.test.node.orelse if isinstance(node, ast.If) and isinstance(node.test, Kept) else None
    else_ = before if isinstance(before, cst.Else) else cst.Else(cst.IndentedBlock([]))
    return else_.with_changes(body=_close_block(node.orelse))
