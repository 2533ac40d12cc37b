"""The parts of an index.

A tuple is the indices that it holds, and so is a list that holds tensors, slices or lists. Integers and arrays with
something between them are refused: JAX takes an integer next to arrays for an array too, and puts their axis first.
"""

from __future__ import annotations

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Stop, place_at
from fnjax.port.known.facts import Value


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


def spread_list(ev: Evaluator, node: cst.Subscript) -> cst.Subscript:
    """Return `x[[i, j]]`, where the list holds more than numbers, as `x[i, j]`, which PyTorch takes it for."""
    match [e.slice for e in node.slice]:
        case [cst.Index(cst.List(elements))]:
            if any(holds_indices(ev.port(e.value).value) for e in elements):
                parts = [cst.SubscriptElement(cst.Index(e.value)) for e in elements]
                return place_at(ev, node.with_changes(slice=parts), node)  # type: ignore[no-any-return] # the same
    return node


def holds_indices(value: Value) -> bool:
    """Return whether a list with such an item is a tuple of indices: tensors, slices, None, lists."""
    several = value.parts is not None or value.element is not None
    return value.is_tensor or several or value.name == "builtins.slice" or value.literal is None


def is_position(ev: Evaluator, node: cst.BaseExpression) -> bool:
    """Return whether an index is an integer or `...`."""
    value = ev.port(node).value
    number = is_python_number(value) and value.literal is not None and value.name == "" and value.dtype != "bool"
    return isinstance(node, cst.Ellipsis) or number


def is_python_number(value: Value) -> bool:
    """Return whether this is a single Python value."""
    return value.kind == "static" and value.parts is None and value.element is None and not value.origin.mixed


def check_axes(ev: Evaluator, node: cst.Subscript) -> None:
    """Refuse `x[0, :, i]`: next to arrays JAX takes a number for an array too, and puts their axis first."""
    indices = list_indices(node)
    values = [None if i is None else ev.port(i).value for i in indices]
    arrays = {k for k, v in enumerate(values) if v and v.is_tensor and v.rank != 0 and v.dtype != "bool"}
    arrays |= {k for k, v in enumerate(values) if v and v.kind == v.dtype == "unknown"}  # it may be an array
    arrays |= {k for k, i in enumerate(indices) if isinstance(i, cst.List)}
    numbers = {k for k, i in enumerate(indices) if i and not isinstance(i, cst.Ellipsis) and is_position(ev, i)}
    axes = sorted(numbers | arrays)
    if numbers and arrays and axes != list(range(axes[0], axes[-1] + 1)):
        message = "numbers and arrays with something between them are other axes in JAX: index twice, the numbers first"
        raise Stop(node, "operation", message)
