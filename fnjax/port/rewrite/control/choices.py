"""Python's own choice among tensors' values.

What: `max`, `min`, `sorted`, `any` and `all` of a list, a generator or the rows of a tensor become those of jax.numpy.
Before: `max([v.norm() for v in xs])`
After: `jnp.max(jnp.array([jnp.linalg.norm(v) for v in xs]), axis=0)`
Safety: only where the items may be tensors: of Python's numbers the builtin stays.
Limits: a `key` of a tensor's value, and `default`, run outside jit only.
"""

from __future__ import annotations

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr
from fnjax.port.analysis.registry import call_of
from fnjax.port.known.facts import LIST, Value
from fnjax.port.rewrite.values.binding import iterate_over
from fnjax.port.torch import fill, read_literal


@call_of(*(f"builtins.{n}" for n in ("max", "min", "sorted", "any", "all")))
def port_choice(ev: Evaluator, node: cst.Call, name: str) -> Expr | None:
    """Translate `max(values)`."""
    if sum(a.keyword is None for a in node.args) != 1 or node.args[0].star:
        return None
    name = name.removeprefix("builtins.")
    expr = ev.port(node.args[0].value)
    element = iterate_over(ev, node.args[0].value, expr.value)
    options = {a.keyword.value: a.value for a in node.args[1:] if a.keyword}
    if not element.traced:
        return None
    backwards = read_literal(options.pop("reverse", cst.Name("False")))
    if options or not isinstance(backwards, bool):
        ev.report_untraced(node, f"{name}() needs the values of tensors, which are unknown under jit")
        return None
    ev.diagnostics.imports.add("jnp")
    array = expr.node
    if isinstance(array, cst.GeneratorExp):
        array = cst.ListComp(array.elt, array.for_in)
    elif not (expr.value.is_tensor or expr.value.name == LIST or expr.value.parts is not None):
        array = fill("list(A)", A=array)
    array = array if expr.value.is_tensor else fill("jnp.array(A)", A=array)
    if name in {"any", "all"}:
        return Expr(fill(f"jnp.{name}(A)", A=array), Value("tensor", "bool", 0, memref=ev.make_memref(node)))
    one = Value(
        "tensor", element.dtype, 0 if element.rank == 0 else None, memref=ev.make_memref(node), exact=element.exact
    )
    if name == "sorted":
        made = fill(f"list(jnp.sort(A, axis=0){'[::-1]' if backwards else ''})", A=array)
        return Expr(made, Value("static", name=LIST, element=one))
    return Expr(fill(f"jnp.{name}(A, axis=0)", A=array), one)
