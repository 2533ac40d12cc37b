"""Reads at indices.

What: `x[i, a:b]`, `x[..., None]` and `x[index]` stay; a list as index becomes an array. In place of the elements that a
boolean mask selects all are computed, as long as only elementwise operations and reductions follow (see masks).
Before: `x[[0, 2]]`
After: `x[jnp.array([0, 2])]`
Safety: slices are views, and are followed as such; an index out of bounds, an error in PyTorch, is clamped in JAX.
Limits: a mask whose elements are materialised for good has a shape that depends on values: it runs outside jit only.
"""

from __future__ import annotations

from dataclasses import replace

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Expr, Stop
from fnjax.port.analysis.expr import Selection
from fnjax.port.analysis.registry import expression
from fnjax.port.known.facts import DTYPE, LIST, UNKNOWN, Step, Value, find_entry, join_elements
from fnjax.port.rewrite.memory.indices import check_axes, holds_indices, list_indices, spread_list
from fnjax.port.source.naming import iter_targets
from fnjax.port.torch import MISSING, bracket, fill, read_literal, unparse
from fnjax.port.torch.expressions import drop_parentheses
from fnjax.port.tree.located import list_nodes


def find_selecting_index(ev: Evaluator, node: cst.Subscript) -> Expr | None:
    """Return the one index of a subscript where it is a boolean mask, or of unknown dtype, so that it may be one.

    Two such indices have the same `number` only if they have the same value.
    """
    indices = list_indices(node)
    if len(indices) != 1 or indices[0] is None:
        return None
    expr = ev.port(indices[0])
    if expr.value.kind not in {"tensor", "unknown"} or expr.value.dtype not in {"bool", "unknown"}:
        return None
    return replace(expr, value=replace(expr.value, number=expr.value.number or ev.number_expression(expr.node)))


def port_indices(ev: Evaluator, node: cst.Subscript, base: cst.BaseExpression) -> cst.Subscript:
    """Return the subscript with translated indices, lists made arrays."""
    made = []
    changed = False
    for e in node.slice:
        if isinstance(e.slice, cst.Index):
            index = ev.port(e.slice.value)
            ev.need_entries(index.value)
            new = _port_index(ev, index)
            if new is index.node and _may_be_list(ev, node, e.slice.value):
                ev.diagnostics.needs.add("_index")
                new = fill("_index(A)", A=new)
            changed = changed or new is not e.slice.value
            made.append(e.with_changes(slice=e.slice.with_changes(value=bracket(new, 1))))
        else:
            bounds = {f: ev.port(v) for f in ("lower", "upper", "step") if (v := getattr(e.slice, f)) is not None}
            if any(b.value.traced for b in bounds.values()):
                ev.report_untraced(node, "a slice whose bounds are tensors has no fixed shape")
            parts = {f: b.node for f, b in bounds.items()}
            changed = changed or any(parts[f] is not getattr(e.slice, f) for f in parts)
            made.append(e.with_changes(slice=e.slice.with_changes(**parts)))
    if not changed and base is node.value:
        return node
    return cst.Subscript(
        bracket(base), made, lbracket=node.lbracket, rbracket=node.rbracket, lpar=node.lpar, rpar=node.rpar
    )


def make_hashable(ev: Evaluator, expr: Expr) -> cst.BaseExpression:
    """Return a dtype as a key or a member: `jnp.float16` equals the dtype of an array, and has another hash."""
    of_array = isinstance(expr.node, cst.Attribute) and expr.node.attr.value == "dtype"
    if expr.value.name != DTYPE or of_array:
        return expr.node
    ev.diagnostics.imports.add("jnp")
    return fill("jnp.dtype(A)", A=expr.node)


def _port_index(ev: Evaluator, expr: Expr) -> cst.BaseExpression:
    node = make_hashable(ev, expr)
    listed = isinstance(node, (cst.List, cst.ListComp)) or expr.value.name == LIST
    entries = (*(expr.value.parts or ()), *([expr.value.element] if expr.value.element else []))
    if listed and any(map(holds_indices, entries)):
        message = "a list that holds tensors, slices or lists as an index: write `tuple(...)` of it"
        raise Stop(ev.current, "operation", message)
    if listed and (not entries or any(v.kind == v.dtype == "unknown" for v in entries)):
        ev.diagnostics.needs.add("_index")
        return fill("_index(A)", A=node)
    if listed:
        kinds = {v.dtype for v in (*(expr.value.parts or ()), expr.value.element or UNKNOWN)}
        root = "np" if "bool" in kinds else "jnp"  # a mask has to be known under jit
        ev.diagnostics.imports.add(root)
        whole = kinds == {"int"} and not expr.value.parts  # of an empty list too
        return fill(f"{root}.array(A, int)" if whole else f"{root}.array(A)", A=node)
    if isinstance(node, cst.Tuple):
        values = expr.value.parts or ()
        known = values if len(values) == len(node.elements) else (UNKNOWN,) * len(node.elements)
        parts = [
            e.with_changes(value=_port_index(ev, Expr(e.value, v))) if isinstance(e, cst.Element) else e
            for e, v in zip(node.elements, known, strict=True)
        ]
        same = all(a.value is b.value for a, b in zip(parts, node.elements, strict=True))
        return node if same else node.with_changes(elements=parts)
    return node


def _may_be_list(ev: Evaluator, node: cst.Subscript, index: cst.BaseExpression) -> bool:
    """Return whether a list may have been passed as the one index of an array: nothing else is known of it."""
    plain = len(node.slice) == 1 and isinstance(index, (cst.Name, cst.Attribute, cst.Subscript))
    value = ev.port(index).value
    return plain and value.kind == value.dtype == "unknown" and ev.port(node.value).value.is_tensor


@expression(cst.Subscript, general=True)
def port_subscript(ev: Evaluator, node: cst.Subscript) -> Expr | None:
    """Translate `x[i]`."""
    if ev.find_name(node.value).startswith(("typing.", "torch.", "collections.", "builtins.")):
        return Expr(node, UNKNOWN)
    base = ev.port(node.value)
    value = base.value
    ev.need_entries(value)
    if (spread := spread_list(ev, node)) is not node:
        return ev.port(spread)
    if value.kind in {"static", "object"}:
        found = [ev.port(i).value for i in list_indices(node) if i is not None]
        several = value.kind == "static" and (value.parts is not None or value.element is not None)
        if any(v.origin.python or (several and v.is_tensor) for v in found):
            ev.report_untraced(node, "an item of a list at the value of a tensor")
        return Expr(port_indices(ev, node, base.node), _describe_part(ev, node, value))
    check_axes(ev, node)
    index = find_selecting_index(ev, node)
    if index is not None and index.value.dtype == "bool":
        ev.need_entries(index.value)
        return port_selection(ev, node, base, index)
    # What is written back at this index is computed of all entries: then it does not matter whether it is a mask.
    written_back = index is not None and unparse(node.slice[0]) in ev.routine.written_at
    if index is not None and written_back and ev.may_stand_for_selected(index.value.number):
        return Expr(base.node, replace(value, mask=index.value.number, memref=ev.make_memref(node), number=""))
    made = port_indices(ev, node, base.node)
    indices = list_indices(node)
    values = [ev.port(i).value if i is not None else None for i in indices]
    report_mask_among(ev, node)
    basic = all(
        v is None or (v.kind == "static" and v.element is None and v.name != LIST) or is_scalar_index(v) for v in values
    )
    memref = ev.make_memref(node)
    advanced = any(v and (v.is_tensor or v.name == LIST or (v.element and v.element.is_tensor)) for v in values)
    # An index tensor copies and a number makes a view; an entry of a tensor may be taken for either.
    doubtful = not basic and (not advanced or any(i is not None and _may_be_scalar_index(ev, i) for i in indices))
    if (basic or doubtful) and value.memref is not None:
        hole = made.with_changes(value=cst.Name("_"), lpar=[], rpar=[])
        taken = Step.make_step(hole, ev.list_reads(node) - ev.list_reads(node.value))
        memref = replace(value.memref if basic else value.memref.doubtful, steps=(*value.memref.steps, taken))
    kind = value.kind if value.kind == "tensor" else "unknown"
    return Expr(made, Value(kind, value.dtype, memref=memref))


def is_scalar_index(value: Value) -> bool:
    """Return whether an index is a tensor without axes, which PyTorch takes for its number."""
    return value.is_tensor and value.rank == 0 and value.dtype == "int"


def _may_be_scalar_index(ev: Evaluator, node: cst.BaseExpression) -> bool:
    """Return whether an index may be a tensor without axes: an element of a tensor, `k[0]` or one of a loop."""
    value = ev.port(node).value
    if not value.is_tensor or value.rank is not None or value.dtype == "bool":
        return False
    if isinstance(node, cst.Subscript):
        return all(i is not None and ev.port(i).value.kind == "static" for i in list_indices(node))
    return isinstance(node, cst.Name) and any(
        isinstance(loop, cst.For) and node.value in iter_targets(loop.target) for loop in ev.here.loops
    )


def _describe_part(ev: Evaluator, node: cst.Subscript, value: Value) -> Value:
    indices = list_indices(node)
    index = ev.port(indices[0]).value.literal if len(indices) == 1 and indices[0] is not None else MISSING
    name = LIST if value.name == LIST else ""
    if isinstance(index, str) and index in dict(value.entries):
        return find_entry(value, index)
    if value.parts is not None and type(index) is int and -len(value.parts) <= index < len(value.parts):
        return value.parts[index]
    if len(indices) == 1 and indices[0] is None and value.parts is not None:
        bounds = node.slice[0].slice
        assert isinstance(bounds, cst.Slice)
        ends = [read_literal(b) if b is not None else None for b in (bounds.lower, bounds.upper, bounds.step)]
        if all(e is None or type(e) is int for e in ends):
            return Value("static", name=name, parts=value.parts[slice(*ends)], element=value.element)  # type: ignore[arg-type] # all are ints
    if len(indices) == 1 and indices[0] is None:
        return Value("static", name=name, element=value.element)
    if value.element is not None:
        memref = value.memref or value.element.memref
        if memref is None or not value.element.is_tensor:
            return value.element
        known = type(index) is int and index >= 0
        return replace(value.element, memref=memref.take_entry(index) if known else memref.doubtful)  # type: ignore[arg-type] # an int
    return join_elements(value) or UNKNOWN


def have_same_shape(a: Value, b: Value) -> bool:
    """Return whether two arrays surely have one shape, or the same number of axes."""
    return (bool(a.like) and a.like == b.like) or (a.rank is not None and a.rank == b.rank)


def report_mask_among(ev: Evaluator, node: cst.Subscript) -> None:
    """Report a boolean mask among other indices."""
    values = [ev.port(i).value for i in list_indices(node) if i is not None]
    if any(v.dtype == "bool" and not v.mask and v.kind in {"tensor", "unknown"} for v in values):
        message = "a boolean mask among other indices selects a number of elements that depends on values"
        ev.report_untraced(node, f"{message}: write it with torch.where")


def port_selection(ev: Evaluator, node: cst.BaseExpression, base: Expr, mask: Expr) -> Expr:
    """Return all elements in place of those that the mask selects; or the selection, which runs outside jit only.

    Args:
        ev: the evaluation.
        node: the expression that selects.
        base: the array.
        mask: the mask.
    """
    if not ev.may_stand_for_selected(mask.value.number):
        message = "x[mask] selects a number of elements that depends on values: write it with torch.where"
        ev.report_untraced(node, message)
        assert isinstance(node, cst.Subscript)
        selected = Value("tensor", base.value.dtype, 1, memref=ev.make_memref(node))
        return Expr(port_indices(ev, node, base.node), selected)
    number = mask.value.number
    other = None if have_same_shape(mask.value, base.value) else base.node
    reads = ev.list_reads(mask.node) | (ev.list_reads(other) if other else frozenset())
    ev.masks[number] = Selection(mask.node, other, reads)
    return Expr(base.node, replace(base.value, mask=number, memref=ev.make_memref(node), number=""))


def update_at(entry: cst.Subscript, value: cst.BaseExpression, method: str = "set") -> cst.Call:
    """Return `x.at[i].set(value)` for the element `x[i]`."""
    memref = entry.with_changes(value=cst.Attribute(bracket(entry.value), cst.Name("at")))
    return cst.Call(cst.Attribute(memref, cst.Name(method)), [cst.Arg(drop_parentheses(bracket(value, 1)))])


def trim_axes(
    ev: Evaluator, value: cst.BaseExpression, given: cst.BaseExpression, target: cst.BaseExpression
) -> cst.BaseExpression:
    """Return what is put at an index without extra leading axes of size 1, which PyTorch leaves out."""
    waiting, seen = [value], set[str]()
    while waiting:
        for n in list_nodes(waiting.pop(), cst.Name, cst.Call, cst.Subscript):
            if _has_leading_one(n):
                ev.diagnostics.needs.add("_trimmed")
                return fill("_trimmed(A, B)", A=given, B=target)
            if isinstance(n, cst.Name) and n.value not in seen:
                seen.add(n.value)
                waiting += ev.routine.given.get(n.value, ())
    return given


def _has_leading_one(node: cst.CSTNode) -> bool:
    """Return whether an expression surely makes a first axis of size 1: `x[i : i + 1]`, `x[None]`, `x.unsqueeze(0)`."""
    if isinstance(node, cst.Call):
        name, args = unparse(node.func).rpartition(".")[2], [a.value for a in node.args]
        listed = isinstance(args[0], cst.List) and len(args[0].elements) == 1 if args else False
        return (name == "unsqueeze" and read_literal(args[-1]) == 0) or (name in {"tensor", "Tensor"} and listed)
    first = node.slice[0].slice if isinstance(node, cst.Subscript) else None
    if isinstance(first, cst.Index):
        return unparse(first.value) == "None"
    if not isinstance(first, cst.Slice) or first.upper is None:
        return False
    low, high = first.lower, first.upper
    ends = [0 if low is None else read_literal(low), read_literal(high)]
    known = type(ends[0]) is int and type(ends[1]) is int
    if known:
        return bool(ends[1] - ends[0] == 1)  # type: ignore[operator] # both are ints
    return low is not None and unparse(high).replace(" ", "") == f"{unparse(low)}+1"
