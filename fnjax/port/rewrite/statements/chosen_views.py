"""Views that a branch chooses, where they are written to.

What: the branch chooses an index, so that there is one view.
Before: `v = x[0] if flag else x[1]` and `v.mul_(2)`
After: `v_index = 0 if flag else 1`, `v = x[v_index]`, `v = v * 2` and `x = x.at[v_index].set(v)`
Safety: only for two views of one variable that differ in one index: two integers, or two slices if Python decides.
Limits: views of different tensors are findings where they are written to.
"""

from __future__ import annotations

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Statements, make_assignment, place_at
from fnjax.port.analysis.registry import statement
from fnjax.port.rewrite.memory.indices import is_python_number
from fnjax.port.torch import unparse
from fnjax.port.tree.located import list_nodes


@statement(cst.Assign, cst.If)
def port_chosen_view(ev: Evaluator, node: cst.Assign | cst.If) -> Statements | None:
    """Translate a view that a conditional expression, or an `if` with one assignment a branch, chooses."""
    match node:
        case cst.Assign([cst.AssignTarget(cst.Name(name))], cst.IfExp(test, one, other)):
            pass
        case cst.If(
            test,
            cst.IndentedBlock([cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(cst.Name(name))], one)])]),
            cst.Else(
                cst.IndentedBlock([cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(cst.Name(second))], other)])])
            ),
        ) if second == name:
            pass
        case _:
            return None
    match one, other:
        case cst.Subscript(cst.Name(base)), cst.Subscript(cst.Name(same)) if base == same != name:
            pass
        case _:
            return None
    if ev.look_up(base).memref is None or not any(_is_written(n, {name, base}) for n in list_nodes(ev.routine.node)):
        return None
    pairs = list(zip(one.slice, other.slice, strict=False))
    unlike = [i for i, (a, b) in enumerate(pairs) if unparse(a) != unparse(b)]
    if len(one.slice) != len(other.slice) or len(unlike) != 1:
        return None
    chosen = [c for e in pairs[unlike[0]] if (c := _read_index(ev, test, e)) is not None]
    if len(chosen) < 2:
        return None
    index_name = ev.make_unused_name(f"{name}_index")
    ev.routine.reads[index_name] = ev.routine.reads[name]  # it is read where the view is, or what it is a view of
    parts = list(one.slice)
    parts[unlike[0]] = cst.SubscriptElement(cst.Index(cst.Name(index_name)), parts[unlike[0]].comma)
    lines = [
        make_assignment(index_name, cst.IfExp(test, chosen[0], chosen[1])),
        make_assignment(name, one.with_changes(slice=parts)),
    ]
    return [s for each in lines for s in ev.port_statement(place_at(ev, each, node))]


def _read_index(ev: Evaluator, test: cst.BaseExpression, element: cst.SubscriptElement) -> cst.BaseExpression | None:
    """Return an integer, or a slice where Python decides; None for other indices."""
    index = element.slice
    if isinstance(index, cst.Index):
        value = ev.port(index.value).value
        return index.value if is_python_number(value) and value.dtype == "int" else None
    if not isinstance(index, cst.Slice) or ev.is_traced(ev.port(test).value):
        return None
    bounds = [cst.Arg(b or cst.Name("None")) for b in (index.lower, index.upper, index.step)]
    return cst.Call(cst.Name("slice"), bounds)


def _is_written(node: cst.CSTNode, names: set[str]) -> bool:
    """Return whether a node writes to the memory of one of some variables."""
    match node:
        case cst.Call(cst.Attribute(cst.Name(name), cst.Name(method))):
            return name in names and method.endswith("_")
        case cst.AssignTarget(cst.Subscript(cst.Name(name))) | cst.AugAssign(cst.Subscript(cst.Name(name))):
            return name in names
        case cst.AugAssign(cst.Name(name)) | cst.Arg(cst.Name(name), cst.Name("out")):
            return name in names
    return False
