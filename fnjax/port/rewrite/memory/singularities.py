"""Functions with singularities get another argument where a mask does not select their value.

What: of `x[m] = f(y[m])` all elements are computed, and some are taken; the others must not be at a singularity of f
where JAX may differentiate the code, as NaN times 0 is NaN, and PyTorch does not compute them.
Before: `y[x > 0] = x[x > 0].log()`
After: `y = jnp.where(x > 0, jnp.log(jnp.where(x > 0, x, 1)), y)`
Limits: of `torch.where(x > 0, x.log(), 0)` PyTorch computes all elements too, and has the same NaN.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr
from fnjax.port.analysis.expressions import Operands
from fnjax.port.source.records import Routine, list_decorators
from fnjax.port.torch import Operation, fill, find_operation, unparse
from fnjax.port.tree.located import list_nodes


def avoid_singularities(ev: Evaluator, operation: str, values: Sequence[cst.BaseExpression]) -> Operands:
    """Return the argument of a function with singularities, replaced where a mask does not select it."""
    known = find_operation(f"torch.{operation}") if _may_be_differentiated(ev) else None
    if not isinstance(known, Operation) or not known.first.pole:
        return {}
    name, _, safe = known.first.pole.rpartition(":")
    index = [p.name for p in known.first.parameters].index(name) if name else 0
    if len(values) <= index:
        return {}
    node = values[index]
    expr = ev.port(node)
    powers = [ev.port(v).value.literal for v in values[1:] if operation in {"pow", "float_power"}]
    selection = ev.find_selection(expr.value)
    if selection is None or any(isinstance(p, (int, float)) and p >= 0 and p == int(p) for p in powers):
        return {}
    ev.diagnostics.imports.add("jnp")
    made = fill(f"jnp.where(C, A, {safe})", C=selection.condition, A=expr.node)
    return {id(node): (node, Expr(made, expr.value))}


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
