"""Python's own choice among tensors' values.

What: `max`, `min`, `sorted`, `any` and `all` of a list, a generator or the rows of a tensor become those of jax.numpy.
Before: `max([v.norm() for v in xs])`
After: `jnp.max(jnp.array([jnp.linalg.norm(v) for v in xs]), axis=0)`
Safety: only where the entries may be tensors: of Python's numbers the builtin stays.
Limits: a `key` of a tensor's value, and `default`, run un-jitted only.
"""

from __future__ import annotations

import libcst as cst

from fnjax.port.analysis.registry import call_of
from fnjax.port.analysis.walk import Term, Walk, parse
from fnjax.port.known.facts import LIST, Value
from fnjax.port.rewrite.values.binding import iterate_over
from fnjax.port.torch import bracket, read_literal, unparse


@call_of(*(f"builtins.{n}" for n in ("max", "min", "sorted", "any", "all")))
def port_choice(walk: Walk, node: cst.Call, name: str) -> Term | None:
    """Translate `max(values)`."""
    if sum(a.keyword is None for a in node.args) != 1 or node.args[0].star:
        return None
    name = name.removeprefix("builtins.")
    term = walk.port(node.args[0].value)
    element = iterate_over(walk, node.args[0].value, term.value)
    options = {a.keyword.value: a.value for a in node.args[1:] if a.keyword}
    if not element.traced:
        return None
    turned = read_literal(options.pop("reverse", cst.Name("False")))
    if options or not isinstance(turned, bool):
        message = f"{name}() asks for the values of tensors, which are unknown under jit; this runs un-jitted only"
        walk.report(node, "untraced", message)
        return None
    walk.sink.imports.add("jnp")
    array = unparse(bracket(term.node, 1))
    if isinstance(term.node, cst.GeneratorExp):
        array = unparse(cst.ListComp(term.node.elt, term.node.for_in))
    elif not (term.value.is_tensor or term.value.name == LIST or term.value.parts is not None):
        array = f"list({array})"
    array = array if term.value.is_tensor else f"jnp.array({array})"
    if name in {"any", "all"}:
        return Term(parse(f"jnp.{name}({array})"), Value("tensor", "bool", 0, place=walk.make_place(node)))
    one = Value(
        "tensor", element.dtype, 0 if element.rank == 0 else None, place=walk.make_place(node), exact=element.exact
    )
    if name == "sorted":
        made = f"list(jnp.sort({array}, axis=0){'[::-1]' if turned else ''})"
        return Term(parse(made), Value("static", name=LIST, element=one))
    return Term(parse(f"jnp.{name}({array}, axis=0)"), one)
