"""Loops stay Python's.

What: the block of a loop is translated, and so is what it iterates over; jit unrolls it, and a note says so where a
tensor's size says how long it is.
Before: `for i in range(x.size(0)): h = torch.tanh(x[i] + h)`
After: `for i in range(x.shape[0]): h = jnp.tanh(x[i] + h)`
Safety: it is evaluated until what is known before and after an iteration is the same.
Limits: a loop that ends on a tensor's value runs outside jit only.
"""

from __future__ import annotations

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Statements, find_names, list_statements
from fnjax.port.analysis.registry import statement
from fnjax.port.rewrite.values.binding import bind_target, iterate_over
from fnjax.port.source.naming import iter_targets
from fnjax.port.tree.located import list_nodes, list_small_statements, replace_parts

BRANCHES = "branches on a tensor's value, which is unknown under jit"
_UNROLLED = "jit unrolls this loop: where it is long, write its body as a function for jax.lax.scan or fori_loop"


@statement(cst.For, general=True)
def port_for_loop(ev: Evaluator, node: cst.For) -> Statements | None:
    """Translate `for i in range(n):`."""
    items = ev.port(node.iter)
    one = iterate_over(ev, node.iter, items.value)
    if not ev.here.loops and _counts_entries(ev, node):
        ev.note(node.iter, "unrolled", _UNROLLED)
    body = ev.evaluate_loop(node, lambda: bind_target(ev, node.target, one, node), node.body).made
    orelse = node.orelse and node.orelse.with_changes(body=ev.port_body(node.orelse.body))
    if orelse is None and _can_be_dropped(ev, node, body):
        return []
    return [replace_parts(node, iter=items.node, body=body, orelse=orelse)]


def _counts_entries(ev: Evaluator, node: cst.For) -> bool:
    """Return whether the size of a tensor says how many iterations a loop has."""
    given = [n for n in list_nodes(ev.routine.node, cst.Assign) if _reads_size(n.value)]
    sized = {name for n in given for t in n.targets for name in iter_targets(t.target)}
    return _reads_size(node.iter) or bool(find_names(node.iter) & sized)


def _reads_size(node: cst.BaseExpression) -> bool:
    return any(n.attr.value in {"shape", "size"} for n in list_nodes(node, cst.Attribute))


def only_passes(block: cst.BaseSuite) -> bool:
    """Return whether a block does nothing."""
    return all(isinstance(n, cst.Pass) for n in list_small_statements(list_statements(block)))


def _can_be_dropped(ev: Evaluator, node: cst.For, body: cst.BaseSuite) -> bool:
    """Return whether a loop has no effect in JAX: `for t in inputs: t.requires_grad_()`."""
    pure = not any(isinstance(n, (cst.Call, cst.Yield, cst.Await)) for n in list_nodes(node.iter))
    return pure and only_passes(body) and body is not node.body and not any(map(ev.is_live, iter_targets(node.target)))


@statement(cst.While, general=True)
def port_while_loop(ev: Evaluator, node: cst.While) -> Statements | None:
    """Translate `while c: ...`."""
    tests: list[Expr] = []
    body = ev.evaluate_loop(node, lambda: tests.append(ev.port(node.test)), node.body).made
    test = tests[-1]
    if ev.is_traced(test.value):
        ev.report_untraced(node.test, f"this `while` {BRANCHES}")
    orelse = node.orelse and node.orelse.with_changes(body=ev.port_body(node.orelse.body))
    return [replace_parts(node, test=test.node, body=body, orelse=orelse)]
