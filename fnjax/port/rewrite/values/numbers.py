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

from fnjax.port.analysis.registry import call_of
from fnjax.port.analysis.walk import Term, Walk, parse
from fnjax.port.known.facts import STATIC, Value
from fnjax.port.torch import fill, read_literal, unparse


@call_of("*.item")
def port_item(walk: Walk, node: cst.Call, name: str) -> Term | None:
    """Translate `x.max().item()` is the scalar array."""
    of = node.func.value  # type: ignore[attr-defined] # a method
    if node.args or walk.find_name(of):
        return None
    term = walk.port(of)
    if term.value.kind in {"static", "object"}:
        return None
    walk.need_entries(term.value)
    number = of.args[0].value if isinstance(of, cst.Call) and len(of.args) == 1 else None
    if (
        number is not None
        and walk.find_name(of.func) == "torch.tensor"
        and type(known := read_literal(number)) in {int, bool}
    ):
        return Term(number, Value("static", type(known).__name__, literal=known))
    made = term.node if term.value.rank == 0 else fill("A.reshape(())", A=term.node)
    value = replace(term.value, kind="tensor", rank=0, python=True, place=walk.make_place(node))
    return Term(walk.stop_gradient(made), value)


@call_of("*.numel")
def port_size_numel(walk: Walk, node: cst.Call, name: str) -> Term | None:
    """Translate `x.shape[1:].numel()`."""
    if node.args:
        return None
    term = walk.port(node.func.value)  # type: ignore[attr-defined] # a method
    element = term.value.element or (term.value.parts or (None,))[0]
    if term.value.kind != "static" or element is None or element.dtype != "int":
        return None
    walk.sink.imports.add("math")
    return Term(fill("math.prod(A)", A=term.node), Value("static", "int"))


_CONSTANTS = frozenset({"jnp.ones", "jnp.zeros", "jnp.full", "jnp.arange", "jnp.linspace", "jnp.array"})


@call_of("*.tolist")
def port_tolist(walk: Walk, node: cst.Call, name: str) -> Term | None:
    """Translate `a, b = x.tolist()` unpacks scalar arrays."""
    if node.args:
        return None
    made = node.func.value  # type: ignore[attr-defined] # a method
    term = walk.port(made)
    if term.value.kind in {"static", "object"} or walk.find_name(made):
        return None
    walk.need_entries(term.value)
    constant = isinstance(term.node, cst.Call) and unparse(term.node.func) in _CONSTANTS
    if constant and isinstance(made, cst.Call) and all(walk.port(a.value).value.kind == "static" for a in made.args):
        walk.sink.imports.add("np")
        return Term(parse(f"{unparse(term.node).replace('jnp.', 'np.')}.tolist()"), Value("static", element=STATIC))
    if term.value.rank == 0:
        return Term(walk.stop_gradient(term.node), replace(term.value, place=walk.make_place(node)))
    element = Value("tensor", term.value.dtype, 0, place=walk.make_place(node), exact=term.value.exact)
    return Term(fill("list(A)", A=walk.stop_gradient(term.node)), Value("static", element=element))
