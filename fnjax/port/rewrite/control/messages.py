"""Messages about values.

What: what prints a tensor's value as a number goes away with a note.
Before: `print("{:.3f}".format(x.mean()))`
After: nothing
Safety: messages that need no value stay.
"""

from __future__ import annotations

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Statements
from fnjax.port.analysis.registry import statement
from fnjax.port.rewrite.control.checks import DROPPED, is_message
from fnjax.port.tree.located import list_nodes


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
