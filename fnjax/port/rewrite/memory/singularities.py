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
    """Return whether JAX may differentiate this code: also forward, where what it keeps is no input, nor a mask."""
    routine = ev.routine
    if ev.derived or routine.role not in {"forward", "setup_context"}:
        return ev.derived
    inside = list_nodes(routine.node.body, cst.Assign, cst.Call)
    saving = {f"{routine.context}.save_for_backward", f"{routine.context}.save_for_forward"}
    kept = [a.value for n in inside if isinstance(n, cst.Call) and unparse(n.func) in saving for a in n.args]
    assigned = [n for n in inside if isinstance(n, cst.Assign)]
    kept += [n.value for n in assigned if unparse(n.targets[0].target).startswith(f"{routine.context}.")]
    given = [g for k in kept if isinstance(k, cst.Name) for g in routine.given.get(k.value, ())]  # none to an input
    return not all(isinstance(g, cst.Comparison) for g in given)
