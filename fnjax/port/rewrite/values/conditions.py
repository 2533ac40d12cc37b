"""Conditions of Python and of tensors in one `and` or `or`.

What: Python's part is evaluated first and stays Python's; the tensors' part becomes one array. `not` goes to the parts.
Before: `ok = n > 0 and (x > 0).all() and (y > 0).all()`
After: `ok = n > 0 and jnp.all(x > 0) & jnp.all(y > 0)`
Safety: Python's part decides what it decides in the source, before a tensor is computed.
Limits: `and` and `or` of tensors that are no conditions (`x or y`) run outside jit only.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr
from fnjax.port.analysis.registry import expression
from fnjax.port.known.facts import Origin, Value, join_values
from fnjax.port.torch import MISSING, bracket, fill
from fnjax.port.tree.located import list_nodes


def find_asked(value: Value) -> str:
    """Return who decides a condition: `python`, `array`, or `either`, which is written as an array's."""
    open_ = value.kind == "unknown" and value.dtype == "bool" and value.memref is not None
    return "array" if value.traced else "either" if open_ else "python"


_ONLY_ASKING = frozenset({"builtins.isinstance", "builtins.hasattr", "builtins.len", "builtins.getattr"})


def _may_act(ev: Evaluator, node: cst.BaseExpression) -> bool:
    """Return whether a condition may have an effect."""
    calls = [n.func for n in list_nodes(node) if isinstance(n, cst.Call)]
    named = any(isinstance(n, (cst.NamedExpr, cst.Await, cst.Yield)) for n in list_nodes(node))
    return named or not all(ev.find_name(f) in _ONLY_ASKING for f in calls)


def list_operands(node: cst.BooleanOperation) -> list[cst.BaseExpression]:
    """Return the operands of `a and b and c`."""
    found: list[cst.BaseExpression] = []
    for side in (node.left, node.right):
        same = isinstance(side, cst.BooleanOperation) and type(side.operator) is type(node.operator)
        found += list_operands(side) if same else [side]  # type: ignore[arg-type] # as `same` says
    return found


_OPPOSITES: dict[type[cst.CSTNode], Any] = {
    cst.Is: cst.IsNot,
    cst.IsNot: cst.Is,
    cst.In: cst.NotIn,
    cst.NotIn: cst.In,
    cst.Equal: cst.NotEqual,
    cst.NotEqual: cst.Equal,
}


def negate(node: cst.BaseExpression) -> cst.BaseExpression:
    """Return the opposite of a condition, with `not` inside its parts."""
    if isinstance(node, cst.UnaryOperation) and isinstance(node.operator, cst.Not):
        return node.expression
    if isinstance(node, cst.BooleanOperation):
        operator = cst.Or() if isinstance(node.operator, cst.And) else cst.And()
        return _join_conditions([negate(n) for n in list_operands(node)], operator)
    if isinstance(node, cst.Comparison) and len(node.comparisons) == 1:
        (last,) = node.comparisons
        opposite = _OPPOSITES.get(type(last.operator))
        if opposite is not None:
            return node.with_changes(comparisons=[last.with_changes(operator=opposite())])
    return cst.UnaryOperation(cst.Not(), bracket(node))


def _join_conditions(parts: list[cst.BaseExpression], operator: cst.BaseBooleanOp) -> cst.BaseExpression:
    least = 5 if isinstance(operator, cst.And) else 4
    return functools.reduce(
        lambda a, b: cst.BooleanOperation(bracket(a, least - 1), operator, bracket(b, least)), parts
    )


def port_chained_comparison(ev: Evaluator, node: cst.Comparison) -> cst.BaseExpression | None:
    """Return `a < b and b < c` for `a < b < c` of tensors."""
    middle = [t.comparator for t in node.comparisons[:-1]]
    if not middle or any(isinstance(n, (cst.NamedExpr, cst.Await, cst.Yield)) for m in middle for n in list_nodes(m)):
        return None
    if any(isinstance(n, cst.Attribute) and n.attr.value.endswith("_") for m in middle for n in list_nodes(m)):
        return None  # it writes
    sides = [node.left, *(t.comparator for t in node.comparisons)]
    if not any(ev.port(n).value.traced for n in sides):
        return None
    links = (cst.Comparison(left, [t]) for left, t in zip(sides, node.comparisons, strict=False))
    return _join_conditions([*links], cst.And())


@expression(cst.BooleanOperation, general=True)
def port_boolean_operation(ev: Evaluator, node: cst.BooleanOperation) -> Expr:
    """Translate `a and b`."""
    found = list_operands(node)
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
    exprs = [*map(_make_question, exprs[:-1]), exprs[-1]]
    asked = [find_asked(t.value) for t in exprs]
    arrays = [t for t, a in zip(exprs, asked, strict=True) if a != "python"]
    if "array" in asked and all(t.value.dtype == "bool" for t in arrays):
        return _write_condition(ev, node, exprs, arrays)
    if "array" in asked[:-1]:
        ev.report_untraced(node, "`and` and `or` need the Python bool of a tensor")
    value = functools.reduce(lambda a, b: b if a.kind == b.kind else join_values(a, b), [t.value for t in exprs])
    made = (
        ev.port_parts(node)
        if len(exprs) == len(found)
        else _join_conditions([t.node for t in exprs], type(node.operator)())
    )
    known = exprs[-1].value.literal if decided else MISSING
    return Expr(made, replace(value, literal=known), answered=decided)


def _make_question(expr: Expr) -> Expr:
    """Return an operand of `and` or `or`; an integer array n without axes as `n != 0`."""
    value = expr.value
    if not (value.is_tensor and value.dtype == "int" and value.rank == 0):
        return expr
    return Expr(fill("A != 0", A=expr.node), replace(value, dtype="bool", number="", exact=""))


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


def _write_condition(ev: Evaluator, node: cst.BooleanOperation, exprs: list[Expr], arrays: list[Expr]) -> Expr:
    """Return Python's conditions, then one array of the others."""
    joined = "A & B" if isinstance(node.operator, cst.And) else "A | B"
    python = [t for t in exprs if all(t is not a for a in arrays)]
    together = functools.reduce(lambda a, b: fill(joined, A=a, B=b), (t.node for t in arrays))
    if len(arrays) > 1 and any(t.value.rank != 0 and t.value.is_tensor for t in arrays):  # of one entry: a Python bool
        ev.diagnostics.imports.add("jnp")
        together = fill("jnp.all(A)", A=together)
    if not python and all(t.value.is_tensor or t.value.kind == "unknown" for t in arrays):
        return Expr(together, Value("tensor", "bool", 0))
    made = _join_conditions([*(t.node for t in python), together], type(node.operator)())
    return Expr(
        made,
        Value("unknown", "bool", 0, memref=ev.make_memref(node), origin=Origin(mixed=True)),
    )
