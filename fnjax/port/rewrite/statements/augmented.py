"""Augmented assignments.

What: `x += v` of variables, attributes of ctx, `x.data` and entries.
Before: `x[i, 1:] += v`
After: `x = x.at[i, 1:].add(v)`
Safety: whatever shares memory with x is written as well (see writing), and x keeps its dtype; PyTorch's `x[i] += v`
with an index tensor counts each entry once, so it becomes `.set(x[i] + v)`.
Limits: entries of tensors in containers.
"""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from fnjax.port.analysis.registry import statement
from fnjax.port.analysis.walk import Statements, Stop, Term, Walk, place_at
from fnjax.port.known.facts import LIST, NUMBER, STATIC, UNKNOWN, Value, may_touch, may_widen
from fnjax.port.rewrite.calls.torch_calls import keep_dtype
from fnjax.port.rewrite.memory.indexing import find_mask, find_open_index, port_indices, update_at
from fnjax.port.rewrite.memory.indices import list_indices, split_indices
from fnjax.port.rewrite.memory.writing import check_not_owned, write_memory
from fnjax.port.rewrite.statements.entries import is_data, write_into
from fnjax.port.rewrite.values.arithmetic import make_number, port_64_bits, report_overflow
from fnjax.port.rewrite.values.binding import iterate_over, note_set_once
from fnjax.port.rewrite.values.context import keep_on_ctx
from fnjax.port.rewrite.values.differences import must_divide_exactly, write_quotient
from fnjax.port.torch import MISSING, bracket, unparse

_UPDATES = {
    "AddAssign": "add",
    "SubtractAssign": "subtract",
    "MultiplyAssign": "multiply",
    "DivideAssign": "divide",
    "PowerAssign": "power",
}


@statement(cst.AugAssign, general=True)
def port_augmented_assignment(walk: Walk, node: cst.AugAssign) -> Statements | None:
    """Translate `x += v`, `x[i] += v`."""
    operator = type(node.operator).__name__
    symbol = unparse(node.operator).strip().partition("=")[0]
    target = node.target
    if isinstance(target, cst.Subscript):
        base = walk.port(target.value)
        if base.value.kind not in {"static", "object"}:
            return _port_augmented_entries(walk, node, target, base, operator, symbol)
        walk.port_parts(target)
    term = walk.port(node.value)
    given = walk.program.source.definitions.get(unparse(target), ()) if walk.routine.role == "module" else ()
    first = given[0].value if given else None
    if first is not None and walk.program.evaluate(first).kind == "static" and not term.value.is_tensor:  # `N += 1`
        return [cst.SimpleStatementLine([_replace_value(node, term)])]
    if term.value.name == NUMBER and walk.port(target).value.kind != "static":
        term = make_number(term)
    if isinstance(target, cst.Subscript):
        element = walk.port(target).value
        if element.is_tensor and _is_shared(walk, target.value, element):
            raise Stop(node, "alias", "this writes to a tensor in a container; give the tensor a name first")
        return [cst.SimpleStatementLine([_replace_value(node, term)])]
    held = walk.port(target)
    key = walk.name_variable(target)
    if is_data(walk, target):
        assert isinstance(target, cst.Attribute)
        held = walk.port(target.value)
    term = port_64_bits(walk, node, term, held, symbol == "/")
    if symbol in {"*", "<<"}:
        report_overflow(walk, node, held, term, shift=symbol == "<<")
    same = _replace_value(node, term)
    new: cst.BaseExpression = cst.BinaryOperation(bracket(held.node, 13), _find_sign(node), bracket(term.node, 13))
    widening = may_widen(held.value, term.value)
    if symbol == "/" and must_divide_exactly(walk, node, held.value, term.value):
        new, widening = write_quotient(walk, cst.ensure_type(new, cst.BinaryOperation)), True
    new = keep_dtype(new, held, [term.value])
    elsewhere = isinstance(target, cst.Attribute) and not key and not is_data(walk, target)
    if elsewhere and held.value.kind == "static" and walk.routine.role != "helper":
        note_set_once(walk, target)  # type: ignore[arg-type] # as `elsewhere` says
    if elsewhere and held.value.kind == "unknown":
        if term.value.traced or walk.routine.role != "helper":
            note_set_once(walk, target)  # type: ignore[arg-type] # as above
        return [cst.SimpleStatementLine([same])]  # an attribute of the user's object takes the new value
    if term.value.is_tensor:
        check_not_owned(node, held)
    if held.value.kind == "static":
        value = replace(term.value, number="", place=None)
        if value.kind == "static":
            kinds = {held.value.dtype, value.dtype}
            real = symbol == "/" or ("float" in kinds and kinds <= {"float", "int", "bool"})
            wide = held.value.wide and not real
            value = Value("static", "float" if real else value.dtype if len(kinds) == 1 else "unknown", wide=wide)
        if held.value.parts is not None or held.value.element is not None:
            listed = held.value.name == LIST or isinstance(node.value, (cst.List, cst.ListComp))
            element = iterate_over(walk, target, term.value) if term.value.kind == "static" else UNKNOWN
            value = Value("static", name=LIST if listed else "", element=element)
        if key:
            walk.bind_name(key, replace(value, literal=MISSING), node)
            if key.startswith("ctx."):
                keep_on_ctx(walk, key, value)
        return [cst.SimpleStatementLine([same])]
    if term.value.mask != held.value.mask:
        walk.need_entries(term.value)
    # Writing tells who else sees the memory. Where nobody does, `x += v` gives x a new array and may stay as it is.
    alone = len(walk.before)
    write_memory(walk, node, held, new, replace(held.value, number=""))
    written = walk.before[alone:]
    if (
        key
        and len(written) == 1
        and not widening
        and not isinstance(node.target, cst.Subscript)
        and not is_data(walk, target)
    ):
        del walk.before[alone:]
        return [cst.SimpleStatementLine([same])]
    if not written and key:
        walk.bind_name(key, replace(held.value, number=""), node)
        if widening:
            return [cst.SimpleStatementLine([cst.Assign([cst.AssignTarget(target)], new)])]
        return [cst.SimpleStatementLine([same])]
    return []


def _replace_value(node: cst.AugAssign, term: Term) -> cst.AugAssign:
    return node if term.node is node.value else node.with_changes(value=bracket(term.node, 0))


def _is_shared(walk: Walk, container: cst.BaseExpression, element: Value) -> bool:
    """Return whether a tensor in a container may be read in another way as well."""
    if element.place is None or not element.place.local or not element.place.certain:
        return True
    storage = element.place.storage
    others = (n for n, v in walk.state.variables.items() if may_touch(v, storage))
    return any(walk.is_live(n) for n in others if n != unparse(container))


def _port_augmented_entries(
    walk: Walk, node: cst.AugAssign, target: cst.Subscript, base: Term, operator: str, symbol: str
) -> Statements | None:
    """Translate `x[i] += v` is `x[i] = x[i] + v`, or one update of the entries where the index surely is no mask."""
    check_not_owned(node, base)
    if (parted := split_indices(walk, target)) is not target:
        return _port_augmented_entries(walk, node, parted, walk.port(parted.value), operator, symbol)
    indices = [walk.port(i).value if i is not None else STATIC for i in list_indices(target)]
    plain = all(v.kind == "static" and v.element is None and v.name != LIST for v in indices) and operator in _UPDATES
    term = port_64_bits(walk, node, walk.port(node.value), base)
    several = term.value.kind != "static" and not term.value.mask
    if not plain and not (several and find_open_index(walk, target) and find_mask(walk, target) is None):
        made = cst.BinaryOperation(target, _find_sign(node), bracket(node.value, 13))
        return write_into(walk, node, target, walk.port(place_at(walk, made, node)))
    walk.need_entries(base.value, term.value)
    if plain:
        new = update_at(port_indices(walk, target, base.node), term.node, _UPDATES[operator])
    else:
        entry = port_indices(walk, target, base.node)
        new = update_at(entry, cst.BinaryOperation(entry, _find_sign(node), bracket(term.node, 13)))
    write_memory(walk, node, base, new, replace(base.value, number="", kind="tensor"))
    return []


def _find_sign(node: cst.AugAssign) -> cst.BaseBinaryOp:
    """Return the `+` of `+=`."""
    sign: cst.BaseBinaryOp = getattr(cst, type(node.operator).__name__.removesuffix("Assign"))()
    return sign
