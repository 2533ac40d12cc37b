"""Lowering of return, break and continue to flags; the statements that follow are guarded by these."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from typing import Any

from fnjax.torch._syntax import RUNTIME, SCOPES, Names, assign, call, load, negate, walk


def _has(body: Iterable[ast.AST], kind: type[ast.stmt] | tuple[type[ast.stmt], ...]) -> bool:
    return any(isinstance(n, kind) for n in walk(body))


def has_loop_jump(body: Sequence[ast.stmt], kind: Any) -> bool:
    """Return whether a loop's body has a break or continue of this loop, not of an inner one."""
    for statement in body:
        if isinstance(statement, kind):
            return True
        if isinstance(statement, (ast.For, ast.While, *SCOPES)):
            if isinstance(statement, (ast.For, ast.While)) and has_loop_jump(statement.orelse, kind):
                return True
            continue
        for block in list_blocks(statement):
            if has_loop_jump(block, kind):
                return True
    return False


def list_blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    """Return the blocks of a compound statement."""
    found = [getattr(statement, name) for name in ("body", "orelse", "finalbody") if getattr(statement, name, None)]
    found += [h.body for h in getattr(statement, "handlers", ())]
    return [b for b in found if isinstance(b, list)]


def _ends(body: Sequence[ast.stmt], kinds: tuple[type[ast.stmt], ...]) -> bool:
    """Return whether a block always ends in a jump of these kinds, or a raise."""
    if not body:
        return False
    last = body[-1]
    if isinstance(last, (*kinds, ast.Raise)):
        return True
    return isinstance(last, ast.If) and _ends(last.body, kinds) and _ends(last.orelse, kinds)


def lower_returns(body: list[ast.stmt], names: Names) -> list[ast.stmt]:
    """Return a function's body with one return at its end."""
    inner = [s for s in body if not isinstance(s, ast.Return)]
    if not _has(inner, ast.Return) or not any(_may_lower(s) for s in body if _has([s], ast.Return)):
        return body
    value, flag = names.new("value"), names.new("returned")
    always = _ends(body, (ast.Return,)) or _is_endless(body[-1])
    block = _Returns(value, flag, names).lower(body, in_loop=False)
    undefined = ast.Attribute(load(RUNTIME), "UNDEFINED", ast.Load())
    begin = [assign(value, undefined), assign(flag, ast.Constant(False))]
    return [*begin, *block, ast.Return(call("returned", load(value), ast.Constant(True) if always else load(flag)))]


def _is_endless(statement: ast.stmt) -> bool:
    """Return whether a statement is a `while True` that nothing but a return or a raise ends."""
    is_true = (
        isinstance(statement, ast.While) and isinstance(statement.test, ast.Constant) and bool(statement.test.value)
    )
    return is_true and not has_loop_jump(list_blocks(statement)[0], ast.Break)


def _may_lower(statement: ast.stmt) -> bool:
    return isinstance(statement, (ast.If, ast.For, ast.While, ast.With, ast.Return))


class _Returns:
    """Rewriter of `return` into assignments of a value and a flag, which guards the statements that follow."""

    def __init__(self, value: str, flag: str, names: Names) -> None:
        self.value, self.flag, self.names = value, flag, names

    def lower(self, body: Sequence[ast.stmt], *, in_loop: bool) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for i, statement in enumerate(body):
            if isinstance(statement, ast.Return):
                found.append(ast.copy_location(assign(self.value, statement.value or ast.Constant(None)), statement))
                found.append(ast.copy_location(assign(self.flag, ast.Constant(True)), statement))
                return [*found, ast.Break()] if in_loop else found
            if not _has([statement], ast.Return):
                found.append(statement)
                continue
            rest = list(body[i + 1 :])
            if isinstance(statement, ast.If) and not in_loop:
                if _ends(statement.body, (ast.Return,)):
                    statement.orelse, rest = [*statement.orelse, *rest], []
                elif _ends(statement.orelse, (ast.Return,)):
                    statement.body, rest = [*statement.body, *rest], []
            loops = isinstance(statement, (ast.For, ast.While))
            for name in ("body", "orelse", "finalbody"):
                if getattr(statement, name, None):
                    inside = in_loop or (loops and name == "body")
                    setattr(statement, name, self.lower(getattr(statement, name), in_loop=inside))
            for handler in getattr(statement, "handlers", ()):
                handler.body = self.lower(handler.body, in_loop=in_loop)
            found.append(statement)
            if in_loop and loops:
                found.append(ast.copy_location(ast.If(load(self.flag), [ast.Break()], []), statement))
                found += self.lower(rest, in_loop=True)
                return found
            if rest and not in_loop:
                found.append(
                    ast.copy_location(ast.If(negate(self.flag), self.lower(rest, in_loop=False), []), statement)
                )
                return found
            return [*found, *self.lower(rest, in_loop=in_loop)]
        return found


class LoopJumps:
    """Rewriter of `break` and `continue` in a loop's body into assignments of flags."""

    def __init__(self, broken: str, skipped: str) -> None:
        self.broken, self.skipped = broken, skipped

    def lower(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for i, statement in enumerate(body):
            if isinstance(statement, (ast.Break, ast.Continue)):
                flag = self.broken if isinstance(statement, ast.Break) else self.skipped
                return [*found, ast.copy_location(assign(flag, ast.Constant(True)), statement)]
            if not has_loop_jump([statement], (ast.Break, ast.Continue)):
                found.append(statement)
                continue
            rest = list(body[i + 1 :])
            if isinstance(statement, ast.If):
                if _ends(statement.body, (ast.Break, ast.Continue)):
                    statement.orelse, rest = [*statement.orelse, *rest], []
                elif _ends(statement.orelse, (ast.Break, ast.Continue)):
                    statement.body, rest = [*statement.body, *rest], []
            for name in ("body", "orelse", "finalbody"):
                if getattr(statement, name, None) and not (
                    name == "body" and isinstance(statement, (ast.For, ast.While))
                ):
                    setattr(statement, name, self.lower(getattr(statement, name)))
            for handler in getattr(statement, "handlers", ()):
                handler.body = self.lower(handler.body)
            found.append(statement)
            if rest:
                either = ast.BoolOp(ast.Or(), [load(self.broken), load(self.skipped)])
                guarded = ast.If(ast.UnaryOp(ast.Not(), either), self.lower(rest), [])
                found.append(ast.copy_location(guarded, statement))
            return found
        return found
