"""Trees of tensors.

What: torch.utils._pytree.tree_map goes through lists, tuples and dictionaries in PyTorch's order; torch.Tensor that a
function of the file is called with becomes jax.Array.
Before: `tree_map(lambda x: x * 2, state)` and `map_only(torch.Tensor, f, state)`
After: `_tree_map(lambda x: x * 2, state)` and `map_only(jax.Array, f, state)`
Safety: jax.tree takes None for no leaf and sorts dictionaries, so a small function in the output has PyTorch's order.
Since the type of an array is a subclass of jax.Array, no type becomes jax.Array in a file with `type(x)`.
Limits: registered classes, treespecs and `is_leaf` are findings.
"""

from __future__ import annotations

import re

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, parse
from fnjax.port.analysis.registry import call_of, expression
from fnjax.port.known.facts import UNKNOWN, Value
from fnjax.port.rewrite.calls.python_calls import list_values
from fnjax.port.torch import ARRAYS, fill
from fnjax.port.tree.located import list_nodes

_HOME = "torch.utils._pytree."
_ASKS_TYPE = re.compile(r"(?<![.\w])type\((?!\w+,)|__class__")


@call_of(f"{_HOME}tree_map")
def port_tree_map(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `tree_map(f, tree)`."""
    if len(node.args) != 2 or any(a.star or a.keyword for a in node.args):
        return None
    list_values(ev, node)
    ev.diagnostics.needs.add("_tree_map")
    func, tree = (ev.port(a.value).node for a in node.args)
    return Expr(fill("_tree_map(F, T)", F=func, T=tree), UNKNOWN)


@expression(cst.Name, cst.Attribute)
def port_passed_type(ev: Evaluator, node: cst.Name | cst.Attribute) -> Expr | None:
    """Translate `f(torch.Tensor)` of a function of the file."""
    if ev.find_name(node) not in ARRAYS or _ASKS_TYPE.search(ev.program.text):
        return None
    calls = (n for n in list_nodes(ev.current, cst.Call) if any(a.value is node for a in n.args))
    if not any(ev.find_name(n.func).startswith("file:") for n in calls):
        return None
    ev.diagnostics.imports.add("jax")
    return Expr(parse("jax.Array"), Value("object"))
