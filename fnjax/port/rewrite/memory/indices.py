"""How an index is written.

What: numbers and arrays with something between them are two indices, one after the other; a tuple that is written out
is the indices that it holds.
Before: `x[0, :, i]` and `x[tuple((i,))]`
After: `x[0][:, i]` and `x[i]`
Safety: JAX takes a number next to arrays for an array too, and would put their axis first; keys of dictionaries stay.
Limits: numbers and arrays that are not known to be such.
"""

from __future__ import annotations

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, place_at
from fnjax.port.known.facts import LIST, Value
from fnjax.port.torch import unparse


def list_indices(node: cst.Subscript) -> list[cst.BaseExpression | None]:
    """Return the indices, None for slices."""
    found: list[cst.BaseExpression | None] = []
    for e in node.slice:
        if isinstance(e.slice, cst.Slice) or not isinstance(e.slice, cst.Index):
            found.append(None)
        elif isinstance(e.slice.value, cst.Tuple):
            found += [x.value for x in e.slice.value.elements]
        else:
            found.append(e.slice.value)
    return found


def is_position(ev: Evaluator, node: cst.BaseExpression) -> bool:
    """Return whether an index is an integer or `...`."""
    value = ev.port(node).value
    number = is_python_number(value) and value.literal is not None and value.name == "" and value.dtype != "bool"
    return isinstance(node, cst.Ellipsis) or number


def is_python_number(value: Value) -> bool:
    """Return whether this is a single Python value."""
    return value.kind == "static" and value.parts is None and value.element is None and not value.origin.mixed


def split_indices(ev: Evaluator, node: cst.Subscript) -> cst.Subscript:
    """`x[0, :, i]` as `x[0][:, i]`: next to arrays JAX takes a number for an array too, and puts their axis first.

    And `x[tuple((i, j))]` as `x[i, j]`, `x[(i,)]` as `x[i]`.
    """
    if (spelled := _open_tuple(ev, node)) is not node:
        return spelled
    indices = list_indices(node)
    values = [None if i is None else ev.port(i).value for i in indices]
    numbers = {k for k, i in enumerate(indices) if i and not isinstance(i, cst.Ellipsis) and is_position(ev, i)}
    arrays = {k for k, v in enumerate(values) if v and v.is_tensor and v.rank != 0 and v.dtype != "bool"}
    arrays |= {k for k, v in enumerate(values) if v and v.kind == v.dtype == "unknown"}  # for a number it is the same
    arrays |= {k for k, i in enumerate(indices) if isinstance(i, cst.List)}
    places = sorted(numbers | arrays)
    if not numbers or not arrays or places == list(range(places[0], places[-1] + 1)):
        return node
    whole = cst.SubscriptElement(cst.Slice(None, None))
    if len(node.slice) != len(indices) or any(v is not None and v.literal is None for v in values):
        return node
    first = [e if k in numbers or unparse(e).startswith("...") else whole for k, e in enumerate(node.slice)]
    while unparse(first[-1]).startswith(":"):
        first.pop()
    second = [e for k, e in enumerate(node.slice) if k not in numbers]
    inner = node.with_changes(slice=_add_commas(first), lpar=[], rpar=[])
    made: cst.Subscript = place_at(ev, node.with_changes(value=inner, slice=_add_commas(second)), node)
    return made


def _open_tuple(ev: Evaluator, node: cst.Subscript) -> cst.Subscript:
    index = node.slice[0].slice if len(node.slice) == 1 else None
    whole: cst.BaseExpression | None = index.value if isinstance(index, cst.Index) else None
    if isinstance(whole, cst.Call) and unparse(whole.func) == "tuple" and len(whole.args) == 1:
        whole = whole.args[0].value
    elif not isinstance(whole, cst.Tuple) or len(whole.elements) != 1:
        return node
    if not isinstance(whole, (cst.Tuple, cst.List)) or any(isinstance(e, cst.StarredElement) for e in whole.elements):
        return node
    parts = [e.value for e in whole.elements]
    values = {p: ev.port(p).value for p in parts}
    nested = any(v.parts and v.name != LIST and not isinstance(p, cst.List) for p, v in values.items())
    if not parts or nested or not ev.port(node.value).value.is_tensor:
        return node
    indices = _add_commas([cst.SubscriptElement(cst.Index(p)) for p in parts])
    made: cst.Subscript = place_at(ev, node.with_changes(slice=indices), node)
    return made


def _add_commas(parts: list[cst.SubscriptElement]) -> list[cst.SubscriptElement]:
    comma = cst.Comma(whitespace_after=cst.SimpleWhitespace(" "))
    return [p.with_changes(comma=cst.MaybeSentinel.DEFAULT if p is parts[-1] else comma) for p in parts]
