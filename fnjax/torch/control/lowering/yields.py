"""`if` statements with yields: the yields of both branches are moved after the `if`.

A branch that yields cannot be moved into a closure. But `if t: yield a` with `else: yield b` is an `if` that sets
`value` to a or b, and then `yield value`. If only one branch yields, the item has the test as its condition.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from itertools import zip_longest

from fnjax._torch_ops.syntax.jumps import has
from fnjax._torch_ops.syntax.trees import Names, assign, bind, call, compare, load
from fnjax.torch.control.lowering.calls import may_be_traced

_YIELDS = (ast.Yield, ast.YieldFrom, ast.Await)
_VALUE, _PRESENT = "__fnjax_value__", "__fnjax_present__"  # the value, without one but before its yield; the condition


class YieldItem(ast.stmt):
    """Statement that yields a value if a condition is true.

    Args:
        value: the value.
        present: the condition; None if it is always yielded.
    """

    _fields = ("value", "present")

    def __init__(self, value: ast.expr, present: ast.expr | None = None) -> None:
        super().__init__()
        self.value, self.present = value, present

    def lower(self) -> list[ast.stmt]:
        """Return the statement as Python's own statements; value and condition are variables of fixed names."""
        # The variable does not keep the value alive.
        taken: ast.expr = ast.Tuple([load(_VALUE), bind(_VALUE, ast.Constant(None))], ast.Load())
        taken = ast.Subscript(taken, ast.Constant(0), ast.Load())
        made: list[ast.stmt] = [ast.Expr(ast.Yield(taken)), ast.Delete([ast.Name(_VALUE, ast.Del())])]
        if self.present is None:
            return made
        found = call("list_yielded", self.present, taken)
        items = ast.IfExp(compare(_PRESENT, ast.Is(), False), ast.Tuple([], ast.Load()), found)
        return [ast.For(ast.Name(_VALUE, ast.Store()), items, made, [])]


def split(node: ast.If, names: Names) -> list[ast.stmt]:
    """Return an `if` as several statements: `if` statements whose branches do not yield, and yields after them.

    Args:
        node: the statement.
        names: the generator of new names.

    Returns:
        The node itself if it cannot be split: a yield is within a loop or an expression.
    """
    branches = [_cut([s for statement in body for s in _split(statement, names)]) for body in (node.body, node.orelse)]
    if any(has(body, _YIELDS) for branch in branches for body, _ in branch):
        return [node]
    test = names.new("test")
    made: list[ast.stmt] = [assign(test, call("to_bool", node.test))]
    for (yes, first), (no, second) in zip_longest(*branches, fillvalue=((), None)):
        found = [y for y in (first, second) if y is not None]
        is_sure = len(found) == 2 and all(y.present is None for y in found)
        bodies = [[*yes, *_set(first, is_sure)], [*no, *_set(second, is_sure)]] if found else [[*yes], [*no]]
        if any(bodies):
            made.append(ast.If(load(test), bodies[0] or [ast.Pass()], bodies[1]))
        if found:
            made.append(YieldItem(load(_VALUE), None if is_sure else load(_PRESENT)))
    return [ast.fix_missing_locations(ast.copy_location(s, node)) for s in made]


def _set(item: YieldItem | None, is_sure: bool) -> list[ast.stmt]:
    """Return the statements that set the value and the condition of a yield at the end of a branch."""
    made: list[ast.stmt] = []
    if item is not None and not (isinstance(item.value, ast.Name) and item.value.id == _VALUE):
        made.append(assign(_VALUE, item.value))
    if not is_sure and (item is None or item.present is None):
        made.append(assign(_PRESENT, ast.Constant(item is not None)))
    return made


def _split(node: ast.stmt, names: Names) -> list[ast.stmt]:
    if isinstance(node, ast.If) and has([node], _YIELDS) and may_be_traced(node.test):
        return split(node, names)
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Yield):
        return [ast.copy_location(YieldItem(node.value.value or ast.Constant(None)), node)]
    return [node]


def _cut(body: Sequence[ast.stmt]) -> list[tuple[list[ast.stmt], YieldItem | None]]:
    """Return a body in parts: the statements before each yield with that yield, and those after the last one."""
    found: list[tuple[list[ast.stmt], YieldItem | None]] = [([], None)]
    for statement in body:
        if isinstance(statement, YieldItem):
            found[-1] = found[-1][0], statement
            found.append(([], None))
        else:
            found[-1][0].append(statement)
    return found
