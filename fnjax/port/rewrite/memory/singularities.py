"""Functions with singularities get another argument where nobody takes their value.

What: `torch.where`, `masked_fill`, and `x[m] = f(y[m])` take some entries of what is computed for all; the others must
not be at a singularity of f where JAX may differentiate the code, as NaN times 0 is NaN.
Before: `torch.where(x == 0, 1, x.sin() / x)`
After: `jnp.where(x == 0, 1, jnp.sin(x) / jnp.where(x == 0, 1, x))`
Safety: only below entrywise operations; a variable is written out if all that it was computed of is as it was then.
Limits: what a function of the file computes, and what is computed in another branch or iteration.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, find_names, place_at
from fnjax.port.analysis.expressions import Operands
from fnjax.port.source.records import Routine, list_decorators
from fnjax.port.torch import Bound, Operation, bracket, fill, find_operation, unparse
from fnjax.port.torch.expressions import drop_parentheses
from fnjax.port.tree.located import list_nodes

# Of operations that take one or the other: each operand, and whether it is taken where the condition holds.
_TAKING = {
    "where": ("condition", {"input": True, "other": False}),
    "masked_fill": ("mask", {"input": False}),
}


@dataclass(slots=True)
class Guard:
    """A condition under which the entries of an expression are taken.

    Attributes:
        condition: its translation.
        taken: what it is where they are taken.
        inside: the expression, and those that it is made of entry by entry.
        used: whether an argument was replaced.
    """

    condition: cst.BaseExpression
    taken: bool
    inside: frozenset[cst.CSTNode]
    used: bool = False


def avoid_singularities(ev: Evaluator, operation: str, values: Sequence[cst.BaseExpression]) -> Operands:
    """Return the argument of a function with singularities, replaced where its value is not taken."""
    known = find_operation(f"torch.{operation}") if _may_be_differentiated(ev) else None
    if not isinstance(known, Operation) or not known.first.pole:
        return {}
    name, _, safe = known.first.pole.rpartition(":")
    index = [p.name for p in known.first.parameters].index(name) if name else 0
    if len(values) <= index:
        return {}
    node = values[index]
    expr = made = ev.port(node)
    powers = [ev.port(v).value.literal for v in values[1:] if operation in {"pow", "float_power"}]
    if any(isinstance(p, (int, float)) and p >= 0 and p == int(p) for p in powers):
        return {}
    selection = ev.find_selection(expr.value)
    if selection is not None:
        made = _replace_argument(ev, made, selection.condition, True, safe)
    for guard in ev.guards if expr.value.kind != "static" else ():
        if node in guard.inside:
            guard.used = True
            made = _replace_argument(ev, made, guard.condition, guard.taken, safe)
    return {} if made is expr else {id(node): (node, made)}


def _replace_argument(ev: Evaluator, expr: Expr, condition: cst.BaseExpression, taken: bool, safe: str) -> Expr:
    ev.diagnostics.imports.add("jnp")
    made = fill(f"jnp.where(C, A, {safe})" if taken else f"jnp.where(C, {safe}, A)", C=condition, A=expr.node)
    return Expr(made, expr.value)


def guard_operands(ev: Evaluator, operation: str, bound: Bound) -> Operands:
    """Return the operands of torch.where and the like, off singularities where they are not taken."""
    condition, operands = _TAKING.get(operation, ("", {}))
    if condition not in bound.values or not operands.keys() <= bound.values.keys():
        return {}
    asked, values = ev.port(bound.values[condition]).node, bound.values
    return {id(values[n]): (values[n], guard_operand(ev, values[n], asked, taken)) for n, taken in operands.items()}


def guard_operand(ev: Evaluator, node: cst.BaseExpression, condition: cst.BaseExpression, taken: bool) -> Expr:
    """Translate an expression, with safe arguments where its entries are not taken."""
    expr = ev.port(node)
    if not _may_be_differentiated(ev):
        return expr
    whole = _write_out(ev, node)
    guard = Guard(condition, taken, frozenset(_iter_entrywise(ev, whole)))
    ev.guards.append(guard)
    try:
        with ev.speculate() as region:
            region.made = ev.port(whole).node
    finally:
        ev.guards.pop()
    if not guard.used or region.before:
        return expr
    ev.diagnostics.add_diagnostics(region.diagnostics)
    return replace(expr, node=drop_parentheses(region.made))


def _may_be_differentiated(ev: Evaluator) -> bool:
    """Return whether JAX may differentiate this code: also forward, where it keeps what is neither input nor output."""
    if ev.derived or ev.routine.role not in {"forward", "setup_context"}:
        return ev.derived
    routine, owner = ev.routine, ev.routine.owner
    backward = ev.program.find_method(owner, "backward") if owner is not None else None
    if backward is None or any("once_differentiable" in d for d in list_decorators(backward.node)):
        return False
    kept: list[str | None] = ev.keep_one(_list_kept, lambda: _list_kept(routine))
    return any(name is None or _may_have_gradient(ev, name) for name in kept)


def _list_kept(routine: Routine) -> list[str | None]:
    """Return the variables that forward keeps, neither inputs nor outputs; None for any other expression."""
    inside = list_nodes(routine.node.body, cst.Assign, cst.Call, cst.Return)
    saving = {f"{routine.context}.save_for_backward", f"{routine.context}.save_for_forward"}
    kept = [a.value for n in inside if isinstance(n, cst.Call) and unparse(n.func) in saving for a in n.args]
    for n in inside:
        if isinstance(n, cst.Assign) and isinstance(n.value, cst.Name):
            kept += [n.value for t in n.targets if unparse(t.target).startswith(f"{routine.context}.")]
    values = [n.value for n in inside if isinstance(n, cst.Return) and n.value]
    values += [e.value for v in values if isinstance(v, cst.Tuple) for e in v.elements]
    returned = {v.value for v in values if isinstance(v, cst.Name)}
    plain = returned | ({p.name.value for p in routine.parameters} - routine.given.keys()) | {"None"}
    names = (k.value if isinstance(k, cst.Name) else None for k in kept)
    return [*dict.fromkeys(name for name in names if name not in plain)]


def _may_have_gradient(ev: Evaluator, name: str) -> bool:
    """Return whether a variable may hold other numbers than integers; for one that is bound later its text decides."""
    value = ev.state.variables.get(name)
    if value is not None:
        return value.kind != "static" and value.dtype not in {"bool", "int"}
    return not all(isinstance(g, cst.Comparison) for g in ev.routine.given.get(name, []))


def _iter_entrywise(ev: Evaluator, node: cst.BaseExpression) -> Iterator[cst.BaseExpression]:
    """Yield an expression and all that it is made of entry by entry."""
    yield node
    for part in _list_entrywise_parts(ev, node):
        yield from _iter_entrywise(ev, part)


def _list_entrywise_parts(ev: Evaluator, node: cst.BaseExpression) -> list[cst.BaseExpression]:
    if isinstance(node, cst.BinaryOperation) and not isinstance(node.operator, cst.MatrixMultiply):
        return [node.left, node.right]
    if isinstance(node, cst.UnaryOperation):
        return [node.expression]
    if not isinstance(node, cst.Call):
        return []
    callee = ev.name_callee(node)
    method = callee.startswith("*.") and isinstance(node.func, cst.Attribute)
    known = find_operation(f"torch.Tensor.{callee[2:]}" if method else callee)
    if not isinstance(known, Operation) or not known.each or known.inplace is not None or known.first.random:
        return []
    owner = [node.func.value] if method else []  # type: ignore[attr-defined] # of a method
    return [*owner, *(a.value for a in node.args if not a.star)]


def _write_out(ev: Evaluator, node: cst.BaseExpression) -> cst.BaseExpression:
    """Return an expression in which the expressions that computed its variables replace them."""
    names = [n for n in _iter_entrywise(ev, node) if isinstance(n, cst.Name)]
    found = {n: _write_out(ev, given) for n in names if (given := _find_computed(ev, n.value)) is not None}
    if not found:
        return node
    made = found[node] if node in found else node.visit(_Replacer(found))  # type: ignore[index] # a name
    assert isinstance(made, cst.BaseExpression)
    written: cst.BaseExpression = place_at(ev, made, node)
    return written


class _Replacer(cst.CSTTransformer):
    """A transformer that replaces names by expressions."""

    def __init__(self, found: dict[cst.Name, cst.BaseExpression]) -> None:
        super().__init__()
        self.found = found

    def leave_Name(self, original_node: cst.Name, updated_node: cst.Name) -> cst.BaseExpression:
        """Put one of them in."""
        return bracket(self.found[original_node]) if original_node in self.found else updated_node


def _find_computed(ev: Evaluator, name: str) -> cst.BaseExpression | None:
    """Return the expression that a variable was computed by, if it would return the same here."""
    written = ev.state.find_version(name)
    for given in ev.routine.given.get(name, []) if name in ev.state.variables else []:
        line, column = ev.program.source.locate(given)
        if not line * 1000 <= written <= line * 1000 + column:
            continue
        read = find_names(given) & ev.state.variables.keys()
        entries = [*_iter_entrywise(ev, given)]
        leaves = [n for n in entries if not _list_entrywise_parts(ev, n)]
        same = all(ev.state.find_version(n) < written for n in read)
        plain = all(isinstance(n, (cst.Name, cst.Attribute, cst.BaseNumber)) for n in leaves)
        return given if same and plain and len(leaves) < len(entries) else None
    return None
