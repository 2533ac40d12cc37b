"""`and` and `or`.

What: they stay Python's, without the operands that the port knows and that decide nothing.
Before: `if torch.jit.is_scripting() or n > 0:`
After: `if n > 0:`
Safety: an operand that may have an effect stays.
Limits: those whose operands but the last are tensors run outside jit only.
"""

from __future__ import annotations

import functools
from dataclasses import replace

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr
from fnjax.port.analysis.registry import expression
from fnjax.port.known.facts import join_values
from fnjax.port.torch import MISSING, fill
from fnjax.port.tree.located import list_nodes

_ONLY_ASKING = frozenset({"builtins.isinstance", "builtins.hasattr", "builtins.len", "builtins.getattr"})


def _may_act(ev: Evaluator, node: cst.BaseExpression) -> bool:
    """Return whether a condition may have an effect."""
    calls = [n.func for n in list_nodes(node) if isinstance(n, cst.Call)]
    named = any(isinstance(n, (cst.NamedExpr, cst.Await, cst.Yield)) for n in list_nodes(node))
    return named or not all(ev.find_name(f) in _ONLY_ASKING for f in calls)


def _list_operands(node: cst.BooleanOperation) -> list[cst.BaseExpression]:
    """Return the operands of `a and b and c`."""
    found: list[cst.BaseExpression] = []
    for side in (node.left, node.right):
        same = isinstance(side, cst.BooleanOperation) and type(side.operator) is type(node.operator)
        found += _list_operands(side) if same else [side]  # type: ignore[arg-type] # as `same` says
    return found


@expression(cst.BooleanOperation, general=True)
def port_boolean_operation(ev: Evaluator, node: cst.BooleanOperation) -> Expr:
    """Translate `a and b`."""
    found = _list_operands(node)
    exprs = [ev.port(found[0])]
    with ev.enter_conditional():
        exprs += [ev.port(n) for n in found[1:]]
    operand_exprs = list(zip(found, exprs, strict=True))
    exprs = _drop_decided(found, exprs, isinstance(node.operator, cst.Or))
    if len(exprs) == 1:
        return exprs[0]
    asking = [
        n for n, expr in operand_exprs if any(expr is t for t in exprs[:-1])
    ]  # a call that the port answers does nothing
    decided = exprs[-1].answer is isinstance(node.operator, cst.Or) and not any(_may_act(ev, n) for n in asking)
    if any(t.value.traced for t in exprs[:-1]):
        ev.report_untraced(node, "`and` and `or` need the Python bool of a tensor")
    value = functools.reduce(lambda a, b: b if a.kind == b.kind else join_values(a, b), [t.value for t in exprs])
    both = "A or B" if isinstance(node.operator, cst.Or) else "A and B"
    joined = functools.reduce(lambda a, b: fill(both, A=a, B=b), [t.node for t in exprs])
    made = ev.port_parts(node) if len(exprs) == len(found) else joined
    known = exprs[-1].value.literal if decided else MISSING
    return Expr(made, replace(value, literal=known), answered=decided)


def _drop_decided(asked: list[cst.BaseExpression], exprs: list[Expr], either: bool) -> list[Expr]:
    """Return the operands of `and` or `or` without those that the port knows and that decide nothing."""
    if not any(t.value.dtype == "bool" and isinstance(t.value.literal, bool) for t in exprs):
        return exprs
    left: list[Expr] = []
    for i, expr in enumerate(exprs):
        known = expr.answer
        if known is either:  # it decides: what follows is never evaluated, and what only reads can go
            before = [(n, t.value) for n, t in zip(asked, exprs, strict=True) if any(t is other for other in left)]
            named = all(isinstance(n, (cst.Name, cst.Attribute)) for n, _ in before)
            flags = named and all(v.kind == "static" and v.dtype == "bool" for _, v in before)
            return [expr] if flags else [*left, expr]
        if known is None or i == len(exprs) - 1:
            left.append(expr)
    if len(left) > 1 and left[-1].answer is (not either) and all(t.value.dtype == "bool" for t in left):
        left.pop()
    return left
