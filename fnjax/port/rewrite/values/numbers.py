"""Tensors as Python numbers.

What: `.item()` is the scalar array itself, `int()` one of whole numbers, `.tolist()` a list of them.
Before: `x / x.abs().max().item()`
After: `x / jnp.max(jnp.abs(x))`
Safety: where PyTorch's number would leave another tensor's dtype alone, the result is cast back to it.
Limits: a number that decides a shape, a range or an axis, or which entry of a list is meant, is unknown under jit, and
a finding there.
"""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from fnjax.port.analysis.registry import expression
from fnjax.port.analysis.walk import Term, Walk, parse
from fnjax.port.known.facts import STATIC, Value
from fnjax.port.torch import code, fit, literal


@expression(cst.Call)
def item(walk: Walk, node: cst.Call) -> Term | None:
    """`x.max().item()` is the scalar array."""
    if not (isinstance(node.func, cst.Attribute) and node.func.attr.value == "item" and not node.args):
        return None
    if walk.name_of(node.func.value):
        return None
    term = walk.expr(node.func.value)
    if term.value.kind in {"static", "object"}:
        return None
    walk.need_entries(term.value)
    of = node.func.value
    number = of.args[0].value if isinstance(of, cst.Call) and len(of.args) == 1 else None
    if number is not None and walk.name_of(of.func) == "torch.tensor" and type(known := literal(number)) in {int, bool}:  # type: ignore[attr-defined] # a call
        return Term(number, Value("static", type(known).__name__, literal=known))
    made = term.node if term.value.rank == 0 else parse(f"{code(fit(term.node))}.reshape(())")
    value = replace(term.value, kind="tensor", rank=0, python=True, place=walk.fresh(node))
    return Term(walk.constant(made), value)


@expression(cst.Call)
def size_numel(walk: Walk, node: cst.Call) -> Term | None:
    """`x.shape[1:].numel()`."""
    if not (isinstance(node.func, cst.Attribute) and node.func.attr.value == "numel" and not node.args):
        return None
    term = walk.expr(node.func.value)
    element = term.value.element or (term.value.parts or (None,))[0]
    if term.value.kind != "static" or element is None or element.dtype != "int":
        return None
    walk.sink.imports.add("math")
    return Term(parse(f"math.prod({code(term.node)})"), Value("static", "int"))


_CONSTANTS = frozenset({"jnp.ones", "jnp.zeros", "jnp.full", "jnp.arange", "jnp.linspace", "jnp.array"})


@expression(cst.Call)
def tolist(walk: Walk, node: cst.Call) -> Term | None:
    """`a, b = x.tolist()` unpacks scalar arrays."""
    if not (isinstance(node.func, cst.Attribute) and node.func.attr.value == "tolist" and not node.args):
        return None
    term = walk.expr(node.func.value)
    if term.value.kind in {"static", "object"} or walk.name_of(node.func.value):
        return None
    walk.need_entries(term.value)
    made = node.func.value
    constant = isinstance(term.node, cst.Call) and code(term.node.func) in _CONSTANTS
    if constant and isinstance(made, cst.Call) and all(walk.expr(a.value).value.kind == "static" for a in made.args):
        walk.sink.imports.add("np")
        return Term(parse(f"{code(term.node).replace('jnp.', 'np.')}.tolist()"), Value("static", element=STATIC))
    if term.value.rank == 0:
        return Term(walk.constant(term.node), replace(term.value, place=walk.fresh(node)))
    element = Value("tensor", term.value.dtype, 0, place=walk.fresh(node), exact=term.value.exact)
    return Term(parse(f"list({code(walk.constant(term.node))})"), Value("static", element=element))
