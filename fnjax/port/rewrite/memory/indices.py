"""The parts of an index.

A tuple is the indices that it holds. Integers and arrays with something between them are refused: JAX takes an integer
next to arrays for an array too, and would put their axis first.
"""

from __future__ import annotations

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator, Stop
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
