"""Patterns of einops.

What: rearrange, repeat and reduce become a helper that reads the pattern when the port is traced, einsum that of jnp.
Before: `y = rearrange(x, "b (h d) -> b h d", h=heads)`
After: `y = _rearrange(x, "b (h d) -> b h d", h=heads)`
Safety: the helper understands einops' patterns whole: groups, ones and the ellipsis.
Limits: pack and unpack, and reductions that are not named, are findings.
"""

from __future__ import annotations

import re
import string

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Stop
from fnjax.port.analysis.registry import call_of
from fnjax.port.known.facts import UNKNOWN, Value
from fnjax.port.rewrite.calls.python_calls import list_values
from fnjax.port.rewrite.calls.torch_calls import port_named_operation
from fnjax.port.torch import read_literal


@call_of("einops.einsum")
def port_einsum(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `einsum(q, k, "b q d, b k d -> b q k")`."""
    pattern = read_literal(node.args[-1].value) if node.args else None
    if not isinstance(pattern, str) or any(a.keyword or a.star for a in node.args):
        raise Stop(node, "operation", "einops.einsum: the pattern must be a literal")
    axes = list(dict.fromkeys(re.findall(r"\w+", pattern)))
    short = axes if all(len(a) == 1 for a in axes) else string.ascii_letters
    letters = dict(zip(axes, short, strict=False))
    equation = re.sub(r"\w+", lambda m: letters[m[0]], pattern).replace(" ", "")
    return port_named_operation(ev, node, "torch.einsum", [cst.Arg(cst.SimpleString(f'"{equation}"')), *node.args[:-1]])


@call_of("einops.rearrange", "einops.repeat", "einops.reduce")
def port_einops(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `rearrange(x, "b c h w -> b (h w) c")`."""
    if name == "einops.reduce":
        given = [a.value for a in node.args if a.keyword is None or a.keyword.value == "reduction"][2:3]
        if not given or read_literal(given[0]) not in {"sum", "mean", "max", "min", "prod", "any", "all"}:
            raise Stop(node, "operation", "einops.reduce: name the reduction, 'sum' for example")
    value = next(iter(list_values(ev, node)), UNKNOWN)
    ev.diagnostics.needs.add("_rearrange")
    made = cst.Call(cst.Name("_rearrange"), [ev.port_parts(a) for a in node.args])
    memref = value.memref.doubtful if value.memref else ev.make_memref(node)  # a view where that is possible
    return Expr(made, Value("tensor", value.dtype, memref=memref, exact=value.exact))
