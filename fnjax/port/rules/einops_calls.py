"""Patterns of einops.

What: rearrange, repeat and reduce become a helper that reads the pattern when the port is traced.
Before: `y = rearrange(x, "b (h d) -> b h d", h=heads)`
After: `y = _rearrange(x, "b (h d) -> b h d", h=heads)`
Safety: the helper understands einops' patterns whole: groups, ones and the ellipsis.
Limits: einsum, pack and unpack, and reductions that are not named, are findings.
"""

from __future__ import annotations

import libcst as cst

from fnjax.port.facts import UNKNOWN, Value
from fnjax.port.operations import literal
from fnjax.port.rules.python_calls import values_of
from fnjax.port.rules.registry import expression
from fnjax.port.walk import Stop, Term, Walk

_NAMES = frozenset({"einops.rearrange", "einops.repeat", "einops.reduce"})


@expression(cst.Call)
def einops(walk: Walk, node: cst.Call) -> Term | None:
    """`rearrange(x, "b c h w -> b (h w) c")`."""
    name = walk.name_of(node.func)
    if name not in _NAMES:
        return None
    if name == "einops.reduce":
        given = [a.value for a in node.args if a.keyword is None or a.keyword.value == "reduction"][2:3]
        if not given or literal(given[0]) not in {"sum", "mean", "max", "min", "prod", "any", "all"}:
            raise Stop(node, "operation", "einops.reduce: name the reduction, 'sum' for example")
    value = next(iter(values_of(walk, node)), UNKNOWN)
    walk.sink.needs.add("_rearrange")
    made = cst.Call(cst.Name("_rearrange"), [walk.rebuilt(a) for a in node.args])
    place = value.place.doubtful if value.place else walk.fresh(node)  # a view where that is possible
    return Term(made, Value("tensor", value.dtype, place=place, exact=value.exact))
