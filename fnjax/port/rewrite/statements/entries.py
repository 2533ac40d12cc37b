"""Entries of arrays and of containers take new values.

What: `x[i] = v` and `x.data = v` write to the array's memory; an index that may be a mask or integers is told
apart when the port runs.
Before: `y[m] = 0` and `y[i, 1:] = v`
After: `y = jnp.where(m, 0, y)` and `y = y.at[i, 1:].set(v)`
Safety: whatever sees the memory takes its new value (see writes to memory); after `x.data = v`
both share the memory of v.
Limits: a boolean mask among other indices runs outside jit only.
"""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Statements, Stop
from fnjax.port.known.facts import MemRef, Value, join_elements, join_values
from fnjax.port.rewrite.memory.indexing import (
    check_whole_write,
    find_mask,
    find_mask_among,
    find_open_index,
    is_mask,
    number_index,
    port_indices,
    trim_axes,
    update_at,
)
from fnjax.port.rewrite.memory.indices import list_indices, split_indices
from fnjax.port.rewrite.memory.masks import write_masked
from fnjax.port.rewrite.memory.sharing import find_holders
from fnjax.port.rewrite.memory.writing import check_not_owned, write_memory
from fnjax.port.rewrite.values.arithmetic import make_number, port_64_bits
from fnjax.port.rewrite.values.binding import note_set_once, report_outliving
from fnjax.port.rewrite.values.context import is_ctx
from fnjax.port.torch import MISSING, fill, unparse


def is_data(ev: Evaluator, target: cst.BaseExpression) -> bool:
    """Return whether this is `x.data`."""
    if not isinstance(target, cst.Attribute) or target.attr.value != "data" or is_ctx(ev, target.value):
        return False
    return ev.port(target.value).value.kind not in {"static", "object"}


def _check_not_viewed(ev: Evaluator, node: cst.CSTNode, target: cst.Attribute, base: Expr) -> None:
    """`x.data = v` gives x other memory: what was a view of the old is none of the new."""
    own = base.value.memref
    views = [n for n, p in find_holders(ev, own).items() if p.steps != own.steps and ev.is_live(n, node)] if own else []
    if views:
        data = unparse(target)
        message = f"{data} = ... gives other memory, and the view {views[0]!r} keeps the old; write {data}.copy_(...)"
        raise Stop(node, "alias", message)


def _take_memory(ev: Evaluator, own: MemRef | None, given: MemRef | None) -> None:
    """After `x.data = v` x has the memory of v; a parameter keeps its own, as the caller is given its new entries."""
    if own is None or given is None or any(s.startswith("arg:") for s in own.storage):
        return
    for name, held in find_holders(ev, own).items():
        if held.steps == own.steps:
            ev.state.variables[name] = replace(ev.state.variables[name], memref=given)


def write_into(
    ev: Evaluator, node: cst.BaseSmallStatement, target: cst.BaseExpression, expr: Expr
) -> Statements | None:
    """Translate `x[i] = v` and `x.data = v`; None for what is not a tensor."""
    if isinstance(target, cst.Attribute):
        base = ev.port(target.value)
        if base.value.kind in {"static", "object"}:
            return None
        _check_not_viewed(ev, node, target, base)
        base = replace(base, node=ev.stop_gradient(base.node))
        write_memory(ev, node, base, expr.node, replace(base.value, number=""))
        _take_memory(ev, base.value.memref, expr.value.memref)
        return []
    assert isinstance(target, cst.Subscript)
    base = ev.port(target.value)
    known = ev.name_variable(target.value) in {"", *ev.state.variables}
    if not known and not base.value.is_tensor and expr.value.is_tensor and ev.routine.role != "module":
        report_outliving(ev, node, unparse(target.value))
    if base.value.kind in {"static", "object"}:
        # A container of Python's stays the same object: only what is known of its entries changes.
        value = expr.value
        key = ev.name_variable(target.value)
        if old := ev.state.variables.get(key):
            indices = [ev.port(i).value.literal for i in list_indices(target) if i is not None]
            before = join_elements(old)
            element = value if before is None else join_values(before, value)
            parts = old.parts
            if parts and len(indices) == 1 and type(indices[0]) is int and -len(parts) <= indices[0] < len(parts):
                parts = tuple(value if i == indices[0] % len(parts) else p for i, p in enumerate(parts))
            elif parts and not all(p.kind == "static" for p in (*parts, value)):
                parts = None
            elif parts:
                parts = tuple(Value("static", p.dtype) for p in parts)
            ev.state.variables[key] = replace(old, parts=parts, element=element, entries=(), literal=MISSING, number="")
            line, column = ev.program.source.locate(node)
            ev.forget_old_value(key, line * 1000 + column)
        return None
    if base.value.kind == "unknown" and not _is_indexed_like_tensor(ev, base, target):
        if ev.routine.role == "backward" and ev.name_variable(target.value).startswith("ctx."):
            message = (
                f"backward puts something into {unparse(target.value)}, which the caller would see: return it instead, "
                "or write the class with a jax.new_ref"
            )
            ev.report(node, "in-place", message)
        elif expr.value.is_tensor and ev.routine.role == "forward":
            note_set_once(ev, target)
        return None
    check_not_owned(node, base)
    expr = port_64_bits(ev, node, make_number(expr), base)
    if (parted := split_indices(ev, target)) is not target:
        return write_into(ev, node, parted, expr)
    mask = find_mask(ev, target) or find_mask_among(ev, target, expr.value)
    check_whole_write(ev, base.value, mask.value if mask else None)
    if mask is not None:
        new = write_masked(ev, target, base, mask, expr)
    elif expr.value.mask:
        new = update_entries(ev, target, base, expr)
    else:
        ev.diagnostics.imports.add("jnp") if isinstance(expr.node, (cst.List, cst.Tuple)) else None
        given = expr.node
        # A mask or integers: the text does not tell, so a helper does, by the dtype.
        if find_open_index(ev, target):
            one = expr.value.is_number or isinstance(expr.value.literal, (bool, int, float)) or expr.value.rank == 0
            helper = "_fill" if one else "_set"
            ev.diagnostics.needs.add(helper)
            index = ev.port(list_indices(target)[0]).node  # type: ignore[arg-type] # no slice
            new = fill(f"{helper}(A, I, V)", A=base.node, I=index, V=given)
            write_memory(ev, node, base, new, replace(base.value, number="", kind="tensor"))
            return []
        if isinstance(expr.node, (cst.List, cst.Tuple)):
            given = fill("jnp.array(V)", V=given)
        entry = port_indices(ev, target, base.node)
        if isinstance(node, cst.Assign):
            given = trim_axes(ev, node.value, given, entry)
        report_untraced_mask(ev, target)
        new = update_at(entry, given)
    write_memory(ev, node, base, new, replace(base.value, number="", kind="tensor"))
    return []


def update_entries(ev: Evaluator, target: cst.Subscript, base: Expr, full: Expr) -> cst.BaseExpression:
    """Return the new value of an array whose entries at an index, a mask or integers, take those of another."""
    index = find_open_index(ev, target)
    if index is None or full.value.mask != number_index(ev, index):
        ev.need_entries(full.value)
        return base.node
    ev.diagnostics.needs.add("_update")
    return fill("_update(A, I, V)", A=base.node, I=index.node, V=full.node)


def report_untraced_mask(ev: Evaluator, target: cst.Subscript) -> None:
    """Report a boolean mask among other indices."""
    for index in list_indices(target):
        if index is not None and is_mask(ev, index):
            ev.report(
                target,
                "untraced",
                "a boolean mask among other indices; write it with jnp.where, or it runs un-jitted only",
            )


def _is_indexed_like_tensor(ev: Evaluator, base: Expr, target: cst.Subscript) -> bool:
    """Return whether what is indexed like this is a tensor, though nothing else says so."""
    indices = list_indices(target)
    if isinstance(target.value, cst.Attribute) and ev.port(target.value.value).value.kind == "object":
        return False
    return base.value.memref is not None and not any(isinstance(i, cst.SimpleString) for i in indices)
