"""Calls of which nothing is known stay.

What: calls of the user's own objects, of functions that are arguments, and of the standard library.
Before: `y = activation(x)`
After: `y = activation(x)`
Safety: nothing is assumed of the result.
Limits: see foreign; `decimal.Decimal(t)` and its like run un-jitted only.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import libcst as cst

from fnjax.port.facts import STATIC, UNKNOWN, Value
from fnjax.port.rules.foreign import known
from fnjax.port.rules.python_calls import values_of
from fnjax.port.rules.registry import expression
from fnjax.port.walk import Term, Walk

# Modules of Python's that work on numbers and bytes, not on objects of any kind.
_NUMBERS = frozenset({"bisect", "decimal", "fractions", "heapq", "json", "statistics", "struct"})


@expression(cst.Call)
def others(walk: Walk, node: cst.Call) -> Term:
    """All other calls stay; those of other libraries have to be supplied."""
    name = walk.name_of(node.func)
    known(walk, node, name)
    values = values_of(walk, node)
    made = walk.rebuilt(node)
    func = walk.expr(node.func).value if not name else UNKNOWN
    if func.kind == "object" and func.element is not None:
        return Term(made, replace(func.element, place=walk.fresh(node), number="", mask=""))
    if name in {"types.SimpleNamespace", "argparse.Namespace"}:
        return Term(made, Value("object"))
    root = name.split(".")[0]
    if root in _NUMBERS and any(v.traced for v in values):
        walk.report(node, "untraced", f"{name} of a tensor's value is unknown under jit; this runs un-jitted only")
    if root in sys.stdlib_module_names and not any(v.kind in {"tensor", "unknown"} for v in values):
        return Term(made, STATIC)
    return Term(made, UNKNOWN)
