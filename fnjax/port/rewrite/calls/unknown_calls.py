"""Calls of which nothing is known stay.

What: calls of the user's own objects, of functions that are arguments, and of the standard library.
Before: `y = activation(x)`
After: `y = activation(x)`
Safety: nothing is assumed of the result, which may be a view of what the function is given. A call that is a
statement has an effect: under jit that happens once, while tracing, as a note says.
Limits: names of other libraries; `decimal.Decimal(t)` and its like run outside jit only; a call that fills an empty
array is a finding.
"""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Stop
from fnjax.port.analysis.registry import ANY, NAMELESS, call_of
from fnjax.port.known.facts import PASSED, STATIC, UNKNOWN, MemRef, Value
from fnjax.port.rewrite.calls.foreign_names import OF_ANY_ARRAYS, OF_PYTHON, is_foreign, report_unknown_library
from fnjax.port.rewrite.calls.python_calls import list_values
from fnjax.port.rewrite.calls.pytorch_calls import is_importable, port_pytorch_call
from fnjax.port.rewrite.memory.sharing import find_holders
from fnjax.port.rewrite.values.binding import find_held_memref
from fnjax.port.source.naming import iter_targets
from fnjax.port.torch import Operation, find_operation, unparse
from fnjax.port.tree.located import list_nodes

# Modules of Python's that work on numbers and bytes, not on objects of any kind.
_NUMBERS = frozenset({"bisect", "decimal", "fractions", "heapq", "json", "statistics", "struct"})


@call_of(ANY)
def port_unknown_call(ev: Evaluator, node: cst.Call, callee: str) -> Expr:
    """Translate a call of which nothing is known: it stays; of one of another library, report a finding."""
    name = "" if callee.startswith(NAMELESS) else callee
    may_stay = is_foreign(name) and ev.program.by_function and is_importable(ev.program, node.func, name)
    if may_stay and (kept := port_pytorch_call(ev, node)) is not None:
        return kept
    report_unknown_library(node, name)
    values = list_values(ev, node)
    made = ev.port_parts(node)
    func = ev.port(node.func).value if not name else UNKNOWN
    if func.kind == "object" and func.element is not None:
        memref = _find_given_memref(ev, node, func.element.memref, values)
        return Expr(made, replace(func.element, memref=memref, number="", mask=""))
    root = name.split(".")[0]
    held = find_held_memref(ev, [a.value for a in node.args])
    if name in {"types.SimpleNamespace", "argparse.Namespace"}:
        return Expr(made, Value("object", element=held))
    if held and (root in {"collections", "itertools"} or name in {"functools.partial", "copy.copy"}):
        return Expr(made, Value("static", element=held))
    if root in OF_ANY_ARRAYS and values:
        first, given = values[0], [v.memref for v in values if v.memref]
        memref = MemRef.join_all(*given) if given else ev.make_memref(node)  # a view where that is possible
        return Expr(made, Value("tensor", first.dtype, memref=memref, exact=first.exact))
    if root in OF_PYTHON:
        if root in _NUMBERS and any(v.traced for v in values):
            ev.report_untraced(node, f"{name} of a tensor's value is unknown under jit")
        return Expr(made, UNKNOWN if any(v.kind in {"tensor", "unknown"} for v in values) else STATIC)
    _follow_effect(ev, node)
    given = [v.memref for v in values if v.memref]
    return Expr(made, replace(UNKNOWN, memref=MemRef.join_all(*given)) if given else UNKNOWN)


def _find_given_memref(ev: Evaluator, node: cst.Call, memref: MemRef | None, values: list[Value]) -> MemRef:
    """Return the memory of a lambda's result: that of an argument, that of a variable around it, or new."""
    passed = [v.memref for v in values if v.memref and memref and memref.storage & PASSED.storage]
    around = [memref] if memref and find_holders(ev, memref) else []
    return MemRef.join_all(*passed, *around) if passed or around else ev.make_memref(node)


def _follow_effect(ev: Evaluator, node: cst.Call) -> None:
    """Follow a call without a result: it has an effect on its object, or writes to an array that it is given."""
    lines = ev.current.body if isinstance(ev.current, cst.SimpleStatementLine) else [ev.current]
    alone = any(isinstance(s, cst.Expr) and s.value is node for s in lines)
    if not alone or ev.routine.role == "module":
        return
    for arg in node.args:
        into: cst.BaseExpression = arg.value
        while isinstance(into, cst.Subscript):
            into = into.value
        told = arg.keyword is not None and arg.keyword.value == "out"
        if isinstance(into, cst.Name) and ev.is_live(into.value) and (told or _is_blank(ev, into.value)):
            given = f"{unparse(node.func)} is given {unparse(arg.value)!r} to write to"
            raise Stop(node, "alias", f"{given}, and JAX arrays cannot be written to; let it return the new array")
    root, dot, _ = unparse(node.func).partition(".")
    outlives = bool(dot) and root.isidentifier() and root not in ev.state.variables  # a list at the top level
    if (outlives or ev.routine.role != "helper") and any(ev.port(a.value).value.is_tensor for a in node.args):
        called = f"{unparse(node.func)} is called for its effect: under jit that happens once, while tracing"
        ev.note(node, "effect", f"{called}, and what it is given has no values then; jax.debug.callback has them")


def _is_blank(ev: Evaluator, name: str) -> bool:
    """Return whether all assignments of a variable give it an uninitialised array."""
    bound = [n for n in list_nodes(ev.routine.node, cst.Assign) for t in n.targets if name in iter_targets(t.target)]
    made = [n.value.func for n in bound if isinstance(n.value, cst.Call)]
    names = {f.attr.value if isinstance(f, cst.Attribute) else unparse(f) for f in made}
    known = [[find_operation(f"{space}.{name}") for space in ("torch", "torch.Tensor")] for name in names]
    blank = all(any(isinstance(o, Operation) and o.first.blank for o in both) for both in known)
    return bool(made) and len(made) == len(bound) and blank
