"""Lowering of return, break and continue to flags; the statements that follow are guarded by these."""

from __future__ import annotations

import ast
from collections.abc import Callable, Sequence

from fnjax._torch_ops.syntax.jumps import Kinds, ends, has, has_loop_jump
from fnjax._torch_ops.syntax.trees import assign, load


def move_rest(statement: ast.If, rest: list[ast.stmt], kinds: Kinds) -> list[ast.stmt]:
    """Move what follows an `if` into the branch that does not jump; return what stays behind it."""
    if ends(statement.body, kinds):
        statement.orelse = [*statement.orelse, *rest]
    elif ends(statement.orelse, kinds):
        statement.body = [*statement.body, *rest]
    else:
        return rest
    return []


class Returns:
    """Rewriter of `return` into other statements, and a condition that guards what follows.

    Args:
        leave: makes the statements that take the place of a return.
        left: makes the condition that one of the returns has run.
    """

    def __init__(self, leave: Callable[[ast.Return], list[ast.stmt]], left: Callable[[], ast.expr]) -> None:
        self.leave, self.left = leave, left

    def lower(self, body: Sequence[ast.stmt], *, in_loop: bool) -> list[ast.stmt]:
        """Return a block without `return`."""
        found: list[ast.stmt] = []
        for i, statement in enumerate(body):
            if isinstance(statement, ast.Return):
                found += [ast.copy_location(s, statement) for s in self.leave(statement)]
                return [*found, ast.Break()] if in_loop else found
            if not has([statement], ast.Return):
                found.append(statement)
                continue
            rest = list(body[i + 1 :])
            if isinstance(statement, ast.If) and not in_loop:
                rest = move_rest(statement, rest, (ast.Return,))
            loops = isinstance(statement, (ast.For, ast.While))
            for name in ("body", "orelse", "finalbody"):
                if getattr(statement, name, None):
                    inside = in_loop or (loops and name == "body")
                    setattr(statement, name, self.lower(getattr(statement, name), in_loop=inside))
            for handler in getattr(statement, "handlers", ()):
                handler.body = self.lower(handler.body, in_loop=in_loop)
            found.append(statement)
            if in_loop and loops:
                found.append(ast.copy_location(ast.If(self.left(), [ast.Break()], []), statement))
                found += self.lower(rest, in_loop=True)
                return found
            if rest and not in_loop:
                goes_on = ast.UnaryOp(ast.Not(), self.left())
                found.append(ast.copy_location(ast.If(goes_on, self.lower(rest, in_loop=False), []), statement))
                return found
            return [*found, *self.lower(rest, in_loop=in_loop)]
        return found


class LoopJumps:
    """Rewriter of `break` and `continue` in a loop's body into assignments of flags.

    Args:
        broken: the variable that says that the loop has ended, or the empty string where it has no break.
        skipped: the variable that says that the iteration has, or the empty string where it has no continue.
    """

    def __init__(self, broken: str, skipped: str) -> None:
        self.broken, self.skipped = broken, skipped

    def lower(self, body: Sequence[ast.stmt]) -> list[ast.stmt]:
        """Return a block without `break` and `continue` of its own loop."""
        found: list[ast.stmt] = []
        for i, statement in enumerate(body):
            if isinstance(statement, (ast.Break, ast.Continue)):
                flag = self.broken if isinstance(statement, ast.Break) else self.skipped
                return [*found, ast.copy_location(assign(flag, ast.Constant(True)), statement)]
            if not has_loop_jump([statement], (ast.Break, ast.Continue)):
                found.append(statement)
                continue
            rest, goes_on = list(body[i + 1 :]), self._goes_on(statement)
            if isinstance(statement, ast.If):
                rest = move_rest(statement, rest, (ast.Break, ast.Continue))
            for name in ("body", "orelse", "finalbody"):
                if getattr(statement, name, None) and not (
                    name == "body" and isinstance(statement, (ast.For, ast.While))
                ):
                    setattr(statement, name, self.lower(getattr(statement, name)))
            for handler in getattr(statement, "handlers", ()):
                handler.body = self.lower(handler.body)
            found.append(statement)
            if rest:
                found.append(ast.copy_location(ast.If(goes_on, self.lower(rest), []), statement))
            return found
        return found

    def _goes_on(self, statement: ast.stmt) -> ast.expr:
        """Return the condition that a statement which may jump has not jumped."""
        flags = {ast.Break: self.broken, ast.Continue: self.skipped}
        read: list[ast.expr] = [load(flag) for kind, flag in flags.items() if has_loop_jump([statement], kind)]
        return ast.UnaryOp(ast.Not(), read[0] if len(read) == 1 else ast.BoolOp(ast.Or(), read))
