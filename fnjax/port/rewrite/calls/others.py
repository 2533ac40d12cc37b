"""Calls of which nothing is known stay.

What: calls of the user's own objects, of functions that are arguments, and of the standard library.
Before: `y = activation(x)`
After: `y = activation(x)`
Safety: nothing is assumed of the result, which may be a view of what the function is given. A call that stands alone is
there for its effect: under jit that happens once, while tracing, as a note says.
Limits: see foreign; `decimal.Decimal(t)` and its like run un-jitted only; a call that fills an empty array is a
finding.
"""

from __future__ import annotations

import sys
from dataclasses import replace

import libcst as cst

from fnjax.port.analysis.registry import ANY, NAMELESS, call_of
from fnjax.port.analysis.walk import Term, Walk
from fnjax.port.known.facts import PASSED, STATIC, UNKNOWN, Place, Value
from fnjax.port.rewrite.calls.foreign import known
from fnjax.port.rewrite.calls.python_calls import contained, values_of
from fnjax.port.rewrite.memory.sharing import holding
from fnjax.port.rewrite.values.binding import held_by
from fnjax.port.source.naming import targets
from fnjax.port.torch import Operation, code, find
from fnjax.port.tree.located import nodes

# Modules of Python's that work on numbers and bytes, not on objects of any kind.
_NUMBERS = frozenset({"bisect", "decimal", "fractions", "heapq", "json", "statistics", "struct"})


@call_of(ANY)
def others(walk: Walk, node: cst.Call, callee: str) -> Term:
    """All other calls stay; those of other libraries have to be supplied."""
    name = "" if callee.startswith(NAMELESS) else callee
    known(walk, node, name)
    values = values_of(walk, node)
    made = walk.rebuilt(node)
    func = walk.expr(node.func).value if not name else UNKNOWN
    if func.kind == "object" and func.element is not None:
        return Term(
            made, replace(func.element, place=_given(walk, node, func.element.place, values), number="", mask="")
        )
    root = name.split(".")[0]
    held = held_by(walk, [a.value for a in node.args])
    if name in {"types.SimpleNamespace", "argparse.Namespace"}:
        return Term(made, Value("object", element=held))
    if held and (root in {"collections", "itertools"} or name in {"functools.partial", "copy.copy"}):
        return Term(made, Value("static", element=held))
    if root not in sys.stdlib_module_names:
        _effect(walk, node)
        if any(map(_holds_numpy, values)):
            walk.report(
                node,
                "numpy",
                f"{code(node.func)} is given NumPy arrays, which are not to be had under jit: wrap it in "
                "jax.pure_callback with the shape of its result",
            )
    if root in _NUMBERS and any(v.traced for v in values):
        walk.report(node, "untraced", f"{name} of a tensor's value is unknown under jit; this runs un-jitted only")
    if root in sys.stdlib_module_names and not any(v.kind in {"tensor", "unknown"} for v in values):
        return Term(made, STATIC)
    given = [v.place for v in values if v.place]
    return Term(
        made, replace(UNKNOWN, place=Place.among(*given)) if given and root not in sys.stdlib_module_names else UNKNOWN
    )


def _holds_numpy(value: Value) -> bool:
    """Whether this is what the source makes an array of NumPy's of, or holds one."""
    return value.numpy or any(map(_holds_numpy, [*contained([value]), *(v for _, v in value.entries)]))


def _given(walk: Walk, node: cst.Call, place: Place | None, values: list[Value]) -> Place:
    """The memory that a call of a lambda gives: that of an argument, that of a variable around it, or new."""
    passed = [v.place for v in values if v.place and place and place.storage & PASSED.storage]
    around = [place] if place and holding(walk, place) else []
    return Place.among(*passed, *around) if passed or around else walk.fresh(node)


def _effect(walk: Walk, node: cst.Call) -> None:
    """A call whose result nobody takes has an effect on its object, or writes to an array that it is given."""
    lines = walk.current.body if isinstance(walk.current, cst.SimpleStatementLine) else [walk.current]
    alone = any(isinstance(s, cst.Expr) and s.value is node for s in lines)
    if not alone or walk.routine.role == "module":
        return
    for arg in node.args:
        into: cst.BaseExpression = arg.value
        while isinstance(into, cst.Subscript):
            into = into.value
        told = arg.keyword is not None and arg.keyword.value == "out"
        if isinstance(into, cst.Name) and walk.live(into.value) and (told or _is_blank(walk, into.value)):
            walk.report(
                node,
                "alias",
                f"{code(node.func)} is given {code(arg.value)!r} to write to, and JAX arrays cannot be written to; let "
                "it return the new array",
            )
            return
    root, dot, _ = code(node.func).partition(".")
    outlives = bool(dot) and root.isidentifier() and root not in walk.state.variables  # a list at the top level
    if (outlives or walk.routine.role != "helper") and any(walk.expr(a.value).value.is_tensor for a in node.args):
        walk.note(
            node,
            "effect",
            f"{code(node.func)} is called for its effect: under jit that happens once, while tracing, and what it is "
            "given has no values then; jax.debug.callback calls it with values",
        )


def _is_blank(walk: Walk, name: str) -> bool:
    """Whether a variable holds nothing but an array that waits to be filled."""
    given = [
        n.value
        for n in nodes(walk.routine.node)
        if isinstance(n, cst.Assign) and any(name in targets(t.target) for t in n.targets)
    ]
    made = [n.func for n in given if isinstance(n, cst.Call)]
    names = {f.attr.value if isinstance(f, cst.Attribute) else code(f) for f in made}
    return bool(made) and len(made) == len(given) and all(map(_makes_blank, names))


def _makes_blank(name: str) -> bool:
    """Whether a function, or a method, of this name makes an array that says nothing yet."""
    known = (find(f"{space}.{name}") for space in ("torch", "torch.Tensor"))
    return any(isinstance(o, Operation) and o.first.blank for o in known)
