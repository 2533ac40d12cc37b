"""Tensors as Python numbers.

What: `.item()` is the scalar array itself, `int()` one of integers, `.tolist()` a list of them.
Before: `x / x.abs().max().item()`
After: `x / jnp.max(jnp.abs(x))`
Safety: where PyTorch's number would leave another tensor's dtype alone, the result is cast back to it.
Limits: a number that decides a shape, a range, an axis or an item of a list is unknown under jit, and
a finding there.
"""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr
from fnjax.port.analysis.registry import call_of
from fnjax.port.known.facts import LIST, STATIC, Value
from fnjax.port.torch import fill
from fnjax.port.torch.expressions import TemplateFiller


@call_of("*.item")
def port_item(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `x.max().item()`: the scalar array itself."""
    of = node.func.value  # type: ignore[attr-defined] # a method
    if node.args or ev.find_name(of):
        return None
    expr = ev.port(of)
    if expr.value.kind in {"static", "object"}:
        return None
    ev.need_entries(expr.value)
    made = expr.node if expr.value.rank == 0 else fill("A.reshape(())", A=expr.node)
    value = replace(expr.value, kind="tensor", rank=0, memref=ev.make_memref(node))
    value = value.with_origin(python=True)
    return Expr(ev.stop_gradient(made, value), value)


@call_of("*.numel")
def port_size_numel(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `x.shape[1:].numel()`."""
    if node.args:
        return None
    expr = ev.port(node.func.value)  # type: ignore[attr-defined] # a method
    element = expr.value.element or (expr.value.parts or (None,))[0]
    if expr.value.kind != "static" or element is None or element.dtype != "int":
        return None
    ev.diagnostics.imports.add("math")
    return Expr(fill("math.prod(A)", A=expr.node), Value("static", "int"))


_CONSTANTS = frozenset(f"torch.{name}" for name in ("ones", "zeros", "full", "arange", "linspace", "tensor"))


@call_of("*.tolist")
def port_tolist(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `a, b = x.tolist()`, which unpacks scalar arrays."""
    if node.args:
        return None
    made = node.func.value  # type: ignore[attr-defined] # a method
    expr = ev.port(made)
    if expr.value.kind in {"static", "object"} or ev.find_name(made):
        return None
    ev.need_entries(expr.value)
    constant = isinstance(made, cst.Call) and ev.find_name(made.func) in _CONSTANTS
    if constant and all(ev.port(a.value).value.kind == "static" for a in made.args):
        ev.diagnostics.imports.add("np")
        known = TemplateFiller({"jnp": cst.Name("np")}, frozenset()).rewrite(expr.node)
        return Expr(fill("A.tolist()", A=known), Value("static", name=LIST, element=STATIC))
    if expr.value.rank == 0:
        return Expr(ev.stop_gradient(expr.node, expr.value), replace(expr.value, memref=ev.make_memref(node)))
    element = Value("tensor", expr.value.dtype, 0, memref=ev.make_memref(node), exact=expr.value.exact)
    return Expr(fill("list(A)", A=ev.stop_gradient(expr.node, expr.value)), Value("static", name=LIST, element=element))
