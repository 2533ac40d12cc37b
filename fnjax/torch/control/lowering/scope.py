"""Analysis of a function for lowering: which jumps leave a statement, and which tests may be traced."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from fnjax._torch_ops.syntax.jumps import ends, has, has_loop_jump
from fnjax._torch_ops.syntax.trees import Names, list_blocks, walk
from fnjax.torch.control.lowering.calls import is_range, may_be_traced, may_select

_JUMPS = (ast.Break, ast.Continue)
_YIELDS = (ast.Yield, ast.YieldFrom, ast.Await, ast.AsyncFor, ast.AsyncWith)


@dataclass(frozen=True)
class Loop:
    """A loop whose jumps may become flags.

    Attributes:
        outer: the loop around it.
        broken: the flag that `break` and `return` set; "" if the loop has neither.
        skipped: the flag that `continue` sets; "" if the loop has none.
    """

    outer: Loop | None
    broken: str
    skipped: str

    @property
    def flags(self) -> list[str]:
        """The flags that guard the rest of an iteration."""
        return [flag for flag in (self.broken, self.skipped) if flag]


UNFLAGGED = Loop(None, "", "")  # a loop whose jumps stay Python's


class Scope:
    """A function.

    Args:
        node: its definition.

    Attributes:
        names: the generator of its new names.
        loops: its loops whose jumps are flags.
        value: the variable of the returned value, where a traced test decides on the return.
        returned: the flag that a return sets.
        keeps_returns: whether its returns stay Python's, since its statements cannot be moved into closures.
        globals: the names that it declares global.
    """

    def __init__(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.node, self.names, self.loops = node, Names(), dict[ast.stmt, Loop]()
        self.value, self.returned = self.names.new("result"), self.names.new("returned")
        self.globals = {n for s in walk(node.body) if isinstance(s, ast.Global) for n in s.names}
        self.keeps_returns = isinstance(node, ast.AsyncFunctionDef) or _is_bound_to_frame(node.body)

    def list_flags(self, loop: Loop | None) -> list[str]:
        """Return the flags that guard the statements after a jump; [] if jumps are not lowered to flags."""
        return loop.flags if loop is not None else [] if self.keeps_returns else [self.returned]

    @property
    def always_returns(self) -> bool:
        """True if control does not reach the function's end."""
        last = self.node.body[-1]
        endless = isinstance(last, ast.While) and isinstance(last.test, ast.Constant) and bool(last.test.value)
        return ends(self.node.body, (ast.Return,)) or (endless and not has_loop_jump(list_blocks(last)[0], ast.Break))

    def enter(self, node: ast.For | ast.While, outer: Loop | None) -> Loop:
        """Return the record of a loop: the loop around it, and names for the flags that its jumps set."""
        if node not in self.loops:
            breaks = has_loop_jump(node.body, ast.Break) or has(node.body, ast.Return)
            skips = has_loop_jump(node.body, ast.Continue)
            broken, skipped = (
                self.names.new(w) if needed else "" for w, needed in (("broken", breaks), ("skipped", skips))
            )
            self.loops[node] = Loop(outer, broken, skipped)
        return self.loops[node]

    def is_closable(self, statement: ast.stmt, loop: Loop | None) -> bool:
        """Return whether a statement, and the statements after it if it may jump, can be moved into closures."""
        if _is_bound_to_frame([statement]) or (self.keeps_returns and has([statement], ast.Return)):
            return False
        return loop is not UNFLAGGED or not may_leave(statement, loop)


def may_leave(statement: ast.stmt, loop: Loop | None) -> bool:
    """Return whether a statement may return, or break or continue the loop around it."""
    return has([statement], ast.Return) or (loop is not None and has_loop_jump([statement], _JUMPS))


def has_jumps(node: ast.For | ast.AsyncFor | ast.While) -> bool:
    """Return whether a loop has jumps: its own or returns."""
    return has(node.body, ast.Return) or has_loop_jump(node.body, _JUMPS)


def is_traceable(node: ast.AST) -> bool:
    """Return whether a traced value may decide what a statement does."""
    if isinstance(node, (ast.If, ast.While)):
        return may_be_traced(node.test)
    return isinstance(node, ast.For) and (is_range(node.iter) or may_select(node.iter))


def has_traceable(body: Iterable[ast.AST]) -> bool:
    """Return whether statements contain one that a traced value may decide on."""
    return any(is_traceable(n) for n in walk(body))


def reads_frame(body: Iterable[ast.AST], names: Sequence[str] = ()) -> bool:
    """Return whether statements call `locals`, or functions of these names."""
    for node in walk(body):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            empty = not node.args and not node.keywords
            if node.func.id in {"locals", *names} or (empty and node.func.id in {"vars", "dir"}):
                return True
    return False


def _is_bound_to_frame(body: Sequence[ast.AST]) -> bool:
    """Return whether statements cannot be moved into closures.

    Such statements yield, evaluate text that reads their variables, or have a jump in a `finally`, which swallows an
    exception.
    """
    finals = [node.finalbody for node in walk(body) if isinstance(node, (ast.Try, ast.TryStar))]
    return (
        any(isinstance(n, _YIELDS) or getattr(n, "is_async", False) for n in walk(body))
        or reads_frame(body, ("eval", "exec"))
        or any(has(final, ast.Return) or has_loop_jump(final, _JUMPS) for final in finals)
    )
