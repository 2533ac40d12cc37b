"""Messages about values.

What: an `if` that only prints or logs, and needs a tensor's value or draws a number for that, goes away with a note;
so does what prints a tensor's value as a number.
Before: `if random.random() < 0.01: logging.info(f"loss {loss.item()}")`
After: nothing
Safety: only where nothing else reads what the block computes; messages that need no value stay.
Limits: a message that stands next to other statements stays, and is a finding if it needs a value.
"""

from __future__ import annotations

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Statements, Stop
from fnjax.port.analysis.registry import statement
from fnjax.port.rewrite.control.branches import port_if
from fnjax.port.rewrite.control.checks import DROPPED, is_message
from fnjax.port.source.naming import iter_targets
from fnjax.port.tree.located import list_nodes, list_small_statements


@statement(cst.If)
def port_message_if(ev: Evaluator, node: cst.If) -> Statements | None:
    """Translate `if step % 100 == 0: print(x.mean().item())`."""
    if node.orelse is not None or not _only_prints(ev, node):
        return None
    try:
        with ev.speculate() as found:
            port_if(ev, node)
        needless = any(f.severity == "error" for f in found.diagnostics.findings)
    except Stop:
        needless = True
    if not needless:
        return None
    ev.note(node, "dropped", DROPPED)
    return []


@statement(cst.Expr)
def port_formatted_message(ev: Evaluator, node: cst.Expr) -> Statements | None:
    """Translate `print("{:.3f}".format(x.mean()))`, which needs a number."""
    if not is_message(node):
        return None
    shown: list[cst.BaseExpression] = []
    for n in list_nodes(node.value):
        if isinstance(n, cst.FormattedStringExpression) and n.format_spec:
            shown.append(n.expression)
        elif isinstance(n, cst.BinaryOperation) and isinstance(n.left, cst.SimpleString):
            shown += [e.value for e in n.right.elements] if isinstance(n.right, cst.Tuple) else [n.right]
        elif isinstance(n, cst.Call) and isinstance(n.func, cst.Attribute) and n.func.attr.value == "format":
            shown += [a.value for a in n.args]
    if not any(ev.port(s).value.is_tensor for s in shown):
        return None
    ev.note(node, "dropped", DROPPED)
    return []


def _only_prints(ev: Evaluator, node: cst.If) -> bool:
    """Return whether the block prints or logs, and does nothing else."""
    inside = ev.routine.list_names_in(node)
    small = list_small_statements(node.body.body)
    calls = [x for x in small if isinstance(x, cst.Expr)]
    for x in small:
        if isinstance(x, cst.Assign):
            bound = [name for t in x.targets for name in iter_targets(t.target)]
            if not bound or any(id(n) not in inside for name in bound for n in ev.routine.reads.get(name, ())):
                return False
        elif not is_message(x):
            return False
    return bool(calls)
