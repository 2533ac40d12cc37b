"""Entries of arrays and of containers take new values.

What: `x[i] = v` writes to the array's memory; whether an index is a mask or integers is decided when the port runs.
Before: `y[m] = 0` and `y[i, 1:] = v`
After: `y = jnp.where(m, 0, y)` and `y = y.at[i, 1:].set(v)`
Safety: all that share the memory take its new value (see writes to memory).
Limits: a boolean mask among other indices runs outside jit only.
"""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Statements
from fnjax.port.known.facts import join_elements, join_values
from fnjax.port.rewrite.memory.indexing import (
    find_selecting_index,
    port_indices,
    report_mask_among,
    trim_axes,
    update_at,
)
from fnjax.port.rewrite.memory.indices import check_axes, list_indices, spread_list
from fnjax.port.rewrite.memory.masks import write_masked
from fnjax.port.rewrite.memory.writing import check_not_owned, write_memory
from fnjax.port.rewrite.values.arithmetic import check_32_bits, make_number
from fnjax.port.rewrite.values.binding import note_set_once, report_outliving
from fnjax.port.torch import MISSING, fill, unparse


def write_into(ev: Evaluator, node: cst.BaseSmallStatement, target: cst.Subscript, expr: Expr) -> Statements | None:
    """Translate `x[i] = v`; None for what is not a tensor."""
    base = ev.port(target.value)
    target = spread_list(ev, target)
    known = ev.name_variable(target.value) in {"", *ev.state.variables}
    if not known and not base.value.is_tensor and expr.value.is_tensor and ev.routine.role != "module":
        report_outliving(ev, node, unparse(target.value))
    if base.value.kind in {"static", "object"}:
        # A container of Python's stays the same object: only what is known of its entries changes.
        key = ev.name_variable(target.value)
        if old := ev.state.variables.get(key):
            before = join_elements(old)
            element = expr.value if before is None else join_values(before, expr.value)
            ev.state.variables[key] = replace(old, parts=None, element=element, entries=(), literal=MISSING, number="")
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
    expr = make_number(expr)
    check_32_bits(ev, node, expr, base)
    check_axes(ev, target)
    index = find_selecting_index(ev, target)
    mask = index if index is not None and index.value.dtype == "bool" else None
    # A write to entries that a mask has selected: it counts among these, unless its mask was made of them.
    if base.value.mask != (mask.value.mask if mask else ""):
        ev.need_entries(base.value, *([mask.value] if mask else []))
    given = expr.node
    if mask is not None:
        new = write_masked(ev, base, mask, expr)
    elif index is not None and expr.value.mask == index.value.number:  # all entries, computed at once
        ev.diagnostics.needs.add("_update")
        new = fill("_update(A, I, V)", A=base.node, I=index.node, V=given)
    elif index is not None:  # a mask or integers: a helper tells them by the dtype
        ev.need_entries(expr.value)
        one = expr.value.is_number or isinstance(expr.value.literal, (bool, int, float)) or expr.value.rank == 0
        helper = "_fill" if one else "_set"
        ev.diagnostics.needs.add(helper)
        new = fill(f"{helper}(A, I, V)", A=base.node, I=index.node, V=given)
    else:
        ev.need_entries(expr.value)
        if isinstance(given, (cst.List, cst.Tuple)):
            ev.diagnostics.imports.add("jnp")
            given = fill("jnp.array(V)", V=given)
        entry = port_indices(ev, target, base.node)
        if isinstance(node, cst.Assign):
            given = trim_axes(ev, node.value, given, entry)
        report_mask_among(ev, target)
        new = update_at(entry, given)
    write_memory(ev, node, base, new, replace(base.value, number="", kind="tensor"))
    return []


def _is_indexed_like_tensor(ev: Evaluator, base: Expr, target: cst.Subscript) -> bool:
    """Return whether what is indexed like this is a tensor, though nothing else says so."""
    indices = list_indices(target)
    if isinstance(target.value, cst.Attribute) and ev.port(target.value.value).value.kind == "object":
        return False
    return base.value.memref is not None and not any(isinstance(i, cst.SimpleString) for i in indices)
