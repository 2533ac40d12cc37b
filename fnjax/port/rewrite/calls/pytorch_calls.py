"""Calls of functions that stay PyTorch.

What: a function of another module, or one of the file that cannot be translated, stays PyTorch source in the block of
the port, and a JAX class calls it by jax_view.
Before: `y = smooth(x)`
After: `y = fnjax.torch.jax_view(smooth)(x)`
Safety: nothing is assumed of the result, which may be a view of an argument; an `if` on it is Python's, and raises
under jit where a value decides it. jax_view raises if the function writes to an argument.
Limits: only in the methods of a Function: another function that calls such a one stays PyTorch, too. Not where the
result is called, or not used, as the call may write to its arguments, nor in a `with`, with ctx, a dtype, a function or
an object as argument, or of a class or a compiled extension.
"""

from __future__ import annotations

import re
from dataclasses import replace

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr
from fnjax.port.analysis.program import Program
from fnjax.port.known.facts import DTYPE, UNKNOWN, MemRef
from fnjax.port.rewrite.calls.foreign_names import is_foreign
from fnjax.port.rewrite.calls.python_calls import list_values
from fnjax.port.torch import unparse
from fnjax.port.tree.located import list_nodes

_COMPILED = re.compile(r"(^|\.)_\w+\.|cuda|(^|[._])ext([._]|$)|(^|\.)_?C$", re.IGNORECASE)  # `_k2.sum`, `_C`


def is_importable(program: Program, node: cst.BaseExpression, name: str) -> bool:
    """Return whether the block of the port can import a function of another module, as the file does."""
    root = node
    while isinstance(root, cst.Attribute):
        root = root.value
    found = program.source.find_definition(root.value) if isinstance(root, cst.Name) else None
    is_class = name.rpartition(".")[2][:1].isupper()
    return found is not None and bool(found.imported) and not (is_class or _COMPILED.search(name))


def stays_pytorch(program: Program, name: str) -> bool:
    """Return whether a name that JAX source reads is bound in the block of the port alone."""
    found = program.source.find_definition(name)
    imported = found.imported if found is not None else ""
    return name in program.as_pytorch or (is_foreign(imported) and imported.split(".")[0] not in program.importable)


def _is_in_method(ev: Evaluator) -> bool:
    """Return whether this is evaluated when a Function is called, and not when the port is imported."""
    owner = ev.routine.owner
    return owner is not None and owner.is_function and not ev.importing


def port_pytorch_call(ev: Evaluator, node: cst.Call) -> Expr | None:
    """Return a call of a function that stays PyTorch; None where it could behave otherwise."""
    values = list_values(ev, node)
    plain = all(v.kind in {"tensor", "static", "unknown"} and v.name not in {"ctx", DTYPE} for v in values)
    entered = (i.item for n in list_nodes(ev.routine.node, cst.With) for i in n.items)
    unused = (n.value for n in list_nodes(ev.routine.node, cst.Expr))
    called = (n.func for n in list_nodes(ev.current, cst.Call))  # a function that it returns
    if not (plain and _is_in_method(ev)) or any(n is node for n in (*entered, *unused, *called)):
        return None
    ev.diagnostics.imports.add("fnjax")
    func = cst.parse_expression(f"fnjax.torch.jax_view({unparse(node.func)})")
    made = node.with_changes(func=func, args=[a.with_changes(value=ev.port(a.value).node) for a in node.args])
    given = [v.memref for v in values if v.memref]
    return Expr(made, replace(UNKNOWN, memref=MemRef.join_all(*given)) if given else UNKNOWN)
