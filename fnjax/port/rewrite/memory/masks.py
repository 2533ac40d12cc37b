"""Boolean masks become jnp.where.

What: `x[m] = s`, `x[m] = f(y[m], z[m])`, `x[m] *= k`, also through variables: `picked = y[m]; x[m] = 2 * picked`;
in `x[m] = y[m] * v` the values of v take the positions that m selects, if v is no number.
Before: `x[m] = y[m] * 2`
After: `x = jnp.where(m, y * 2, x)`
Safety: all elements are computed in place of the selected ones only where every operation between the read and the
write is elementwise and the mask is the same; other uses of `y[m]` keep it, and are findings. Sums, means, softmax and
the like of `y[m]` take `where=m`.
Limits: elements at which f is not defined are computed too, and not taken; where JAX differentiates backward, second
derivatives are NaN there, as those of jnp.where are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr
from fnjax.port.analysis.expressions import Operands
from fnjax.port.rewrite.memory.indexing import have_same_shape
from fnjax.port.torch import fill


def write_masked(ev: Evaluator, base: Expr, mask: Expr, new: Expr) -> cst.BaseExpression:
    """Return the new value of all of `base` when the elements that `mask` selects take `new`."""
    if new.value.mask != mask.value.number:
        ev.need_entries(new.value)
    several = new.value.kind == "unknown" or (new.value.is_tensor and new.value.rank != 0)
    if several and not new.value.mask:
        ev.diagnostics.needs.add("_set")
        return fill("_set(A, M, V)", A=base.node, M=mask.node, V=new.node)
    ev.diagnostics.imports.add("jnp")
    condition = mask.node
    if not have_same_shape(base.value, mask.value):
        ev.diagnostics.needs.add("_mask")
        condition = fill("_mask(M, A)", M=condition, A=base.node)
    made = fill("jnp.where(C, V, K)", C=condition, V=new.node, K=base.node)
    return fill("A.astype(B.dtype)", A=made, B=base.node) if _may_promote(base, new) else made


def spread_values(ev: Evaluator, operands: Sequence[cst.BaseExpression]) -> Operands:
    """Return the arrays next to selected elements, in `x[m] * t`, with their values at the elements that m selects."""
    exprs = [(v, ev.port(v)) for v in operands]
    selected = {e.value.mask: e.value for _, e in exprs if e.value.mask}
    selection = ev.find_selection(*selected.values()) if len(selected) == 1 else None
    others = [(v, e) for v, e in exprs if not e.value.mask and e.value.rank != 0]
    arrays = [(v, e) for v, e in others if e.value.kind in {"tensor", "unknown"}]
    if not (selected and arrays):
        return {}
    if selection is None:
        ev.need_entries(*selected.values())
        return {}
    ev.diagnostics.needs.add("_spread")
    call = "_spread(T, M, X)" if selection.base else "_spread(T, M)"
    made = {id(v): fill(call, T=e.node, M=selection.mask, X=selection.base or selection.mask) for v, e in arrays}
    return {id(v): (v, Expr(made[id(v)], replace(e.value, mask=next(iter(selected))))) for v, e in arrays}


def _may_promote(base: Expr, new: Expr) -> bool:
    """Return whether jnp.where might give another dtype than that of x, which keeps its own in PyTorch."""
    if new.value.mask:
        return False  # PyTorch demands the same dtype here
    if new.value.kind == "static":
        order = {"bool": 0, "int": 1, "float": 2, "complex": 3}
        if base.value.dtype in order and new.value.dtype in order:
            return order[new.value.dtype] > order[base.value.dtype]
        return new.value.dtype not in {"int", "bool"} and base.value.dtype != "float" and not base.value.is_tensor
    return new.value.dtype != base.value.dtype or (new.value.dtype == "unknown" and new.value.like != base.value.like)
