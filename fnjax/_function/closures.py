"""Values that a function closes over."""

from __future__ import annotations

import types
from typing import Any

from fnjax._primitives.tree import has_leaf, is_tracer


def captures_tracers(value: Any, depth: int = 4) -> bool:
    """Return whether a function has a tracer in its closure or defaults, or refers to a function that has."""
    # A function may refer to itself, so the depth is limited; a deeper tracer is an error when the rule runs.
    function = value.__func__ if isinstance(value, types.MethodType | staticmethod | classmethod) else value
    if not isinstance(function, types.FunctionType) or not depth:
        return False
    return any(has_leaf(v, is_tracer) or captures_tracers(v, depth - 1) for v in captured(function))


def captured(function: types.FunctionType) -> list[Any]:
    """Return the values in a function's closure and defaults, and the function that it wraps."""
    cells = [cell.cell_contents for cell in function.__closure__ or () if _is_filled(cell)]
    return [*cells, *(function.__defaults__ or ()), getattr(function, "__wrapped__", None)]


def _is_filled(cell: types.CellType) -> bool:
    try:
        cell.cell_contents  # noqa: B018 - the access is the question
    except ValueError:
        return False
    return True
