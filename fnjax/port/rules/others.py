"""Calls of which nothing is known stay.

What: calls of the user's own objects, of functions that are arguments, and of the standard library.
Before: `y = activation(x)`
After: `y = activation(x)`
Safety: nothing is assumed of the result.
Limits: see foreign.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import libcst as cst

from fnjax.port.facts import STATIC, UNKNOWN
from fnjax.port.rules.foreign import known
from fnjax.port.rules.python_calls import values_of
from fnjax.port.rules.registry import expression
from fnjax.port.walk import Term, Walk


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
    root = name.split(".")[0]
    if root in sys.stdlib_module_names and not any(v.kind in {"tensor", "unknown"} for v in values):
        return Term(made, STATIC)
    return Term(made, UNKNOWN)
