"""A write in one branch of a conditional expression.

What: the statement is written out for either branch, after an `if`; so is one whose `out=` is such an expression.
Before: `y = (x.sub_(m) if inplace else x - m).exp()`
After: `if inplace: x = x - m; y = jnp.exp(x)` with `else: y = jnp.exp(x - m)`
Safety: only where the expression is evaluated in any case, and no other write of the statement comes before it.
Limits: those in lambdas, comprehensions, `and` and `or` are findings.
"""

from __future__ import annotations

from collections.abc import Iterator

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Statements, place_at
from fnjax.port.analysis.registry import statement
from fnjax.port.tree.located import list_children, list_nodes


@statement(cst.Assign, cst.Return, cst.Expr)
def port_written_choice(ev: Evaluator, small: cst.Assign | cst.Return | cst.Expr) -> Statements | None:
    """Return an `if` in place of a statement with such an expression."""
    if small.value is None or not list_nodes(small.value, cst.IfExp):
        return None
    outs = {
        n.value for n in list_nodes(small.value) if isinstance(n, cst.Arg) and n.keyword and n.keyword.value == "out"
    }
    found = next((n for n in _iter_evaluated(small.value) if isinstance(n, cst.IfExp) or _is_in_place_call(n)), None)
    if not isinstance(found, cst.IfExp):
        return None
    if found not in outs and not any(
        _is_in_place_call(n) for n in (*list_nodes(found.body), *list_nodes(found.orelse))
    ):
        return None
    blocks = []
    for value in (found.body, found.orelse):
        chosen = value.with_changes(lpar=[*value.lpar, *found.lpar], rpar=[*found.rpar, *value.rpar])
        line = cst.SimpleStatementLine([small.deep_replace(found, chosen)])  # type: ignore[arg-type] # a node
        blocks.append(cst.IndentedBlock([line]))
    return ev.port_statement(place_at(ev, cst.If(found.test, blocks[0], cst.Else(blocks[1])), small))


def _iter_evaluated(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    """Yield the nodes that are evaluated in any case, in this order; not those inside a conditional expression."""
    if isinstance(node, (cst.Lambda, cst.BaseComp)):
        return
    if not isinstance(node, cst.IfExp):
        parts = (node.left,) if isinstance(node, cst.BooleanOperation) else reversed(list_children(node))
        for part in parts:
            yield from _iter_evaluated(part)
    yield node


def _is_in_place_call(node: cst.CSTNode) -> bool:
    """Return whether this is the call of an in-place method."""
    if not isinstance(node, cst.Call) or not isinstance(node.func, cst.Attribute):
        return False
    name = node.func.attr.value
    return name.endswith("_") and not name.endswith("__")
