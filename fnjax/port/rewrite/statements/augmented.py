"""Augmented assignments.

What: `x += v` of variables, attributes of ctx, `x.data` and elements.
Before: `x[i, 1:] += v`
After: `x = x.at[i, 1:].add(v)`
Safety: whatever shares memory with x is written as well (see writing), and x keeps its dtype; PyTorch's `x[i] += v`
with an index tensor counts each element once, so it becomes `.set(x[i] + v)`.
Limits: elements of tensors in containers.
"""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Statements, Stop, place_at
from fnjax.port.analysis.registry import statement
from fnjax.port.known.facts import LIST, STATIC, UNKNOWN, Value, may_widen
from fnjax.port.rewrite.calls.torch_calls import keep_dtype
from fnjax.port.rewrite.memory.indexing import port_indices, update_at
from fnjax.port.rewrite.memory.indices import check_axes, list_indices
from fnjax.port.rewrite.memory.masks import spread_values
from fnjax.port.rewrite.memory.writing import check_not_owned, write_memory
from fnjax.port.rewrite.statements.entries import write_into
from fnjax.port.rewrite.values.arithmetic import check_32_bits, expand_augmented, make_number, report_overflow
from fnjax.port.rewrite.values.binding import iterate_over, note_set_once
from fnjax.port.rewrite.values.context import is_ctx, keep_on_ctx
from fnjax.port.rewrite.values.last_digits import must_divide_exactly, write_quotient
from fnjax.port.torch import MISSING, bracket, unparse
from fnjax.port.tree.located import replace_parts

_UPDATES = {
    "AddAssign": "add",
    "SubtractAssign": "subtract",
    "MultiplyAssign": "multiply",
    "DivideAssign": "divide",
    "PowerAssign": "power",
}


@statement(cst.AugAssign, general=True)
def port_augmented_assignment(ev: Evaluator, node: cst.AugAssign) -> Statements | None:
    """Translate `x += v`, `x[i] += v`."""
    operator = type(node.operator).__name__
    symbol = unparse(node.operator).strip().partition("=")[0]
    target = node.target
    if isinstance(target, cst.Attribute) and target.attr.value == "data" and not is_ctx(ev, target.value):
        target = target.value  # type: ignore[assignment] # whose memory `x.data` is
        if not ev.name_variable(target):
            raise Stop(node, "alias", f"this writes to {unparse(node.target)}; bind the result to a variable")
        node = node.with_changes(target=target)
    if isinstance(target, cst.Subscript):
        base = ev.port(target.value)
        if base.value.kind not in {"static", "object"}:
            return _port_augmented_entries(ev, node, target, base, operator)
        ev.port_parts(target)
    expr = ev.port(node.value)
    given = ev.program.source.definitions.get(unparse(target), ()) if ev.routine.role == "module" else ()
    first = given[0].value if given else None
    if first is not None and ev.program.evaluate(first).kind == "static" and not expr.value.is_tensor:  # `N += 1`
        return [cst.SimpleStatementLine([replace_parts(node, value=bracket(expr.node, 0))])]
    if isinstance(target, cst.Subscript):
        element = ev.port(target).value
        if element.is_tensor and _is_shared(ev, target.value, element):
            raise Stop(node, "alias", "this writes to a tensor in a container; give the tensor a name first")
        return [cst.SimpleStatementLine([replace_parts(node, value=bracket(expr.node, 0))])]
    with ev.take(spread_values(ev, (target, node.value))):
        held, expr = ev.port(target), ev.port(node.value)
    if held.value.kind != "static":
        expr = make_number(expr)
    key = ev.name_variable(target)
    check_32_bits(ev, node, expr, held)
    if symbol in {"*", "<<"}:
        report_overflow(ev, node, held, expr, shift=symbol == "<<")
    same = replace_parts(node, value=bracket(expr.node, 0))
    operation = expand_augmented(node).with_changes(left=bracket(held.node, 13), right=bracket(expr.node, 13))
    new: cst.BaseExpression = operation
    widening = may_widen(held.value, expr.value)
    if symbol == "/" and must_divide_exactly(ev, node, held.value, expr.value):
        new, widening = write_quotient(ev, operation), True
    new = keep_dtype(new, held, [expr.value])
    elsewhere = isinstance(target, cst.Attribute) and not key
    if elsewhere and held.value.kind == "static" and ev.routine.role != "helper":
        note_set_once(ev, target)  # type: ignore[arg-type] # as `elsewhere` says
    if elsewhere and held.value.kind == "unknown":
        if expr.value.traced or ev.routine.role != "helper":
            note_set_once(ev, target)  # type: ignore[arg-type] # as above
        return [cst.SimpleStatementLine([same])]  # an attribute of the user's object takes the new value
    if expr.value.is_tensor:
        check_not_owned(node, held)
    if held.value.kind == "static":
        value = replace(expr.value, number="", memref=None)
        if value.kind == "static":
            kinds = {held.value.dtype, value.dtype}
            real = symbol == "/" or ("float" in kinds and kinds <= {"float", "int", "bool"})
            dtype = "float" if real else value.dtype if len(kinds) == 1 else "unknown"
            value = Value("static", dtype)
        if held.value.parts is not None or held.value.element is not None:
            listed = held.value.name == LIST or isinstance(node.value, (cst.List, cst.ListComp))
            element = iterate_over(ev, target, expr.value) if expr.value.kind == "static" else UNKNOWN
            value = Value("static", name=LIST if listed else "", element=element)
        if key:
            ev.bind_name(key, replace(value, literal=MISSING), node)
            if key.startswith("ctx."):
                keep_on_ctx(ev, key, value)
        return [cst.SimpleStatementLine([same])]
    if expr.value.mask != held.value.mask:
        ev.need_entries(expr.value)
    # Writing finds who else sees the memory. Where nobody does, `x += v` binds x to a new array and may stay as it is.
    alone = len(ev.before)
    write_memory(ev, node, held, new, replace(held.value, number=""))
    written = ev.before[alone:]
    if key and len(written) == 1 and not widening:
        del ev.before[alone:]
        return [cst.SimpleStatementLine([same])]
    if not written and key:
        ev.bind_name(key, replace(held.value, number=""), node)
        if widening:
            return [cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(target)], new)])]
        return [cst.SimpleStatementLine([same])]
    return []


def _is_shared(ev: Evaluator, container: cst.BaseExpression, element: Value) -> bool:
    """Return whether a tensor in a container may be read by another name as well."""
    if element.memref is None or not element.memref.local or not element.memref.certain:
        return True
    storage = element.memref.storage
    others = (n for n, v in ev.state.variables.items() if not v.storages.isdisjoint(storage))
    return any(ev.is_live(n) for n in others if n != unparse(container))


def _port_augmented_entries(
    ev: Evaluator, node: cst.AugAssign, target: cst.Subscript, base: Expr, operator: str
) -> Statements | None:
    """Translate `x[i] += v` as `x[i] = x[i] + v`, or one update of the elements where the index surely is no mask."""
    check_not_owned(node, base)
    check_axes(ev, target)
    indices = [ev.port(i).value if i is not None else STATIC for i in list_indices(target)]
    plain = all(v.kind == "static" and v.element is None and v.name != LIST for v in indices) and operator in _UPDATES
    expr = ev.port(node.value)
    check_32_bits(ev, node, expr, base)
    if not plain:
        return write_into(ev, node, target, ev.port(place_at(ev, expand_augmented(node), node)))
    ev.need_entries(base.value, expr.value)
    new = update_at(port_indices(ev, target, base.node), expr.node, _UPDATES[operator])
    write_memory(ev, node, base, new, replace(base.value, number="", kind="tensor"))
    return []
