"""Entries of arrays and of containers take new values.

What: `x[i] = v` and `x.data = v` write to the array's memory; an index that may be a mask or whole numbers is told
apart when the port runs.
Before: `y[m] = 0` and `y[i, 1:] = v`
After: `y = jnp.where(m, 0, y)` and `y = y.at[i, 1:].set(v)`
Safety: whatever sees the memory takes its new value (see writes to memory); after `x.data = v`
both share the memory of v.
Limits: a boolean mask among other indices runs un-jitted only.
"""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from fnjax.port.analysis.walk import Statements, Stop, Term, Walk
from fnjax.port.known.facts import Place, Value, join_elements, join_values
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


def is_data(walk: Walk, target: cst.BaseExpression) -> bool:
    """Return whether this is `x.data`."""
    if not isinstance(target, cst.Attribute) or target.attr.value != "data" or is_ctx(walk, target.value):
        return False
    return walk.port(target.value).value.kind not in {"static", "object"}


def _check_not_viewed(walk: Walk, node: cst.CSTNode, target: cst.Attribute, base: Term) -> None:
    """`x.data = v` gives x other memory: what was a view of the old is none of the new."""
    own = base.value.place
    views = (
        [n for n, p in find_holders(walk, own).items() if p.steps != own.steps and walk.is_live(n, node)] if own else []
    )
    if views:
        data = unparse(target)
        message = f"{data} = ... gives other memory, and the view {views[0]!r} keeps the old; write {data}.copy_(...)"
        raise Stop(node, "alias", message)


def _take_memory(walk: Walk, own: Place | None, given: Place | None) -> None:
    """After `x.data = v` x has the memory of v; a parameter keeps its own, as the caller is given its new entries."""
    if own is None or given is None or any(s.startswith("arg:") for s in own.storage):
        return
    for name, held in find_holders(walk, own).items():
        if held.steps == own.steps:
            walk.state.variables[name] = replace(walk.state.variables[name], place=given)


def write_into(walk: Walk, node: cst.BaseSmallStatement, target: cst.BaseExpression, term: Term) -> Statements | None:
    """Translate `x[i] = v` and `x.data = v`; None for what is no tensor."""
    if isinstance(target, cst.Attribute):
        base = walk.port(target.value)
        if base.value.kind in {"static", "object"}:
            return None
        _check_not_viewed(walk, node, target, base)
        base = replace(base, node=walk.stop_gradient(base.node))
        write_memory(walk, node, base, term.node, replace(base.value, number=""))
        _take_memory(walk, base.value.place, term.value.place)
        return []
    assert isinstance(target, cst.Subscript)
    base = walk.port(target.value)
    known = walk.name_variable(target.value) in {"", *walk.state.variables}
    if not known and not base.value.is_tensor and term.value.is_tensor and walk.routine.role != "module":
        report_outliving(walk, node, unparse(target.value))
    if base.value.kind in {"static", "object"}:
        # A container of Python's stays the same object: only what is known of its entries changes.
        value = term.value
        key = walk.name_variable(target.value)
        if old := walk.state.variables.get(key):
            indices = [walk.port(i).value.literal for i in list_indices(target) if i is not None]
            before = join_elements(old)
            element = value if before is None else join_values(before, value)
            parts = old.parts
            if parts and len(indices) == 1 and type(indices[0]) is int and -len(parts) <= indices[0] < len(parts):
                parts = tuple(value if i == indices[0] % len(parts) else p for i, p in enumerate(parts))
            elif parts and not all(p.kind == "static" for p in (*parts, value)):
                parts = None
            elif parts:
                parts = tuple(Value("static", p.dtype) for p in parts)
            walk.state.variables[key] = replace(
                old, parts=parts, element=element, entries=(), literal=MISSING, number=""
            )
            line, column = walk.program.source.locate(node)
            walk.forget_old_value(key, line * 1000 + column)
        return None
    if base.value.kind == "unknown" and not _is_indexed_like_tensor(walk, base, target):
        if walk.routine.role == "backward" and walk.name_variable(target.value).startswith("ctx."):
            message = (
                f"backward puts something into {unparse(target.value)}, which the caller would see: return it instead, "
                "or write the class with a jax.new_ref"
            )
            walk.report(node, "in-place", message)
        elif term.value.is_tensor and walk.routine.role == "forward":
            note_set_once(walk, target)
        return None
    check_not_owned(node, base)
    term = port_64_bits(walk, node, make_number(term), base)
    if (parted := split_indices(walk, target)) is not target:
        return write_into(walk, node, parted, term)
    mask = find_mask(walk, target) or find_mask_among(walk, target, term.value)
    check_whole_write(walk, base.value, mask.value if mask else None)
    if mask is not None:
        new = write_masked(walk, target, base, mask, term)
    elif term.value.mask:
        new = update_entries(walk, target, base, term)
    else:
        walk.sink.imports.add("jnp") if isinstance(term.node, (cst.List, cst.Tuple)) else None
        given = term.node
        # A mask or whole numbers: the text does not tell, so a helper does, by the dtype.
        if find_open_index(walk, target):
            one = term.value.is_number or isinstance(term.value.literal, (bool, int, float)) or term.value.rank == 0
            helper = "_fill" if one else "_set"
            walk.sink.needs.add(helper)
            index = walk.port(list_indices(target)[0]).node  # type: ignore[arg-type] # no slice
            new = fill(f"{helper}(A, I, V)", A=base.node, I=index, V=given)
            write_memory(walk, node, base, new, replace(base.value, number="", kind="tensor"))
            return []
        if isinstance(term.node, (cst.List, cst.Tuple)):
            given = fill("jnp.array(V)", V=given)
        entry = port_indices(walk, target, base.node)
        if isinstance(node, cst.Assign):
            given = trim_axes(walk, node.value, given, entry)
        report_untraced_mask(walk, target)
        new = update_at(entry, given)
    write_memory(walk, node, base, new, replace(base.value, number="", kind="tensor"))
    return []


def update_entries(walk: Walk, target: cst.Subscript, base: Term, full: Term) -> cst.BaseExpression:
    """Return the new value of an array whose entries at an index, a mask or whole numbers, take those of another."""
    index = find_open_index(walk, target)
    if index is None or full.value.mask != number_index(walk, index):
        walk.need_entries(full.value)
        return base.node
    walk.sink.needs.add("_update")
    return fill("_update(A, I, V)", A=base.node, I=index.node, V=full.node)


def report_untraced_mask(walk: Walk, target: cst.Subscript) -> None:
    """Report a boolean mask among other indices."""
    for index in list_indices(target):
        if index is not None and is_mask(walk, index):
            walk.report(
                target,
                "untraced",
                "a boolean mask among other indices; write it with jnp.where, or it runs un-jitted only",
            )


def _is_indexed_like_tensor(walk: Walk, base: Term, target: cst.Subscript) -> bool:
    """Return whether what is indexed like this is a tensor, though nothing else says so."""
    indices = list_indices(target)
    if isinstance(target.value, cst.Attribute) and walk.port(target.value.value).value.kind == "object":
        return False
    return base.value.place is not None and not any(isinstance(i, cst.SimpleString) for i in indices)
