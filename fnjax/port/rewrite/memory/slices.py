"""Views of a part along one axis are slices, where they are written to.

What: an entry of `split`, `chunk` or `unbind`, and what `select` and `narrow` show, as an index for `.at[...]`.
Before: `a, b = y.split([n, 2], 1); b.mul_(2)`
After: `a, b = jnp.split(y, [n], axis=1)`, `b = b * 2` and `y = y.at[:, n:].set(b)`
Safety: only where the axis is a literal, and the sizes are numbers of Python's; slices end where the axis ends, as the
last piece does.
Limits: pieces of `chunk` between the first and the last, starts that may be negative, and views of views go through
`_write`, which asks an array of numbers where they lie.
"""

from __future__ import annotations

from collections.abc import Sequence

import libcst as cst

from fnjax.port.analysis.evaluator import Evaluator
from fnjax.port.known.facts import HOLE, Step
from fnjax.port.torch import bracket, read_literal, unparse
from fnjax.port.torch.expressions import add_up, multiply


def write_index(ev: Evaluator, steps: Sequence[Step], new: cst.BaseExpression) -> str | None:
    """Return the index of what one view, or an entry of a list of views, shows of an array; None where it is no slice.

    Args:
        ev: the evaluation.
        steps: the views.
        new: what the entries take: a variable, if it has their shape.
    """
    first = steps[0].expression
    if len(steps) == 1 and isinstance(first, cst.Subscript) and unparse(first.value) == HOLE:
        return unparse(first.with_changes(lpar=[], rpar=[]))[len(HOLE) + 1 : -1]
    if not isinstance(first, cst.Call) or not first.args:
        return None
    if len(steps) == 1:
        return _write_part_of_axis(first)
    if len(steps) == 2 and isinstance(entry := steps[1].expression, cst.Subscript):
        memref = entry.slice[0].slice
        if len(entry.slice) == 1 and isinstance(memref, cst.Index) and unparse(entry.value) == HOLE:
            return _write_piece(ev, first, memref.value, new)
    return None


def _write_part_of_axis(view: cst.Call) -> str | None:
    """Translate `x.select(dim, k)` and `x.narrow(dim, start, length)`."""
    values, axis = _split_arguments(view)
    name = unparse(view.func)
    if name == "jnp.take" and len(values) == 1:
        return _write_along(axis, unparse(bracket(values[0], 1)))
    start = read_literal(values[0]) if name == "jax.lax.dynamic_slice_in_dim" and len(values) == 2 else None
    if type(start) is not int or start < 0:
        return None
    return _write_along(axis, f"{start or ''}:{add_up([cst.Integer(str(start)), values[1]])}")


def _write_piece(ev: Evaluator, view: cst.Call, which: cst.BaseExpression, new: cst.BaseExpression) -> str | None:
    """Return an entry of `x.unbind()`, `x.split(n)`, `x.split([m, n])` or `x.chunk(n)`."""
    inner = view.args[0].value
    if unparse(view.func) == "tuple" and not (isinstance(inner, cst.Call) and unparse(inner.func) == "jnp.split"):
        return _write_entry_along(inner, which)
    view = inner if isinstance(inner, cst.Call) and unparse(view.func) == "tuple" else view
    values, axis = _split_arguments(view)
    name, k = unparse(view.func), read_literal(which)
    if axis is None or len(values) != 1 or (k < 0 if type(k) is int else not isinstance(which, cst.Name)):
        return None
    if name in {"_chunk", "jnp.array_split"}:
        return _write_outer_piece(axis, k, read_literal(values[0]), new)
    if name == "jnp.split" and isinstance(values[0], cst.List) and type(k) is int:
        begins = ["", *(unparse(e.value) for e in values[0].elements), ""]
        return _write_along(axis, ":".join(begins[k : k + 2])) if k < len(begins) - 1 else None
    number = ev.port(values[0]).value
    if name != "_split" or not (type(read_literal(values[0])) is int or (number.is_number and number.dtype == "int")):
        return None
    if type(k) is int:
        return _write_along(axis, f"{multiply(values[0], k) if k else ''}:{multiply(values[0], k + 1)}")
    if read_literal(values[0]) == 1:
        return _write_along(axis, f"{unparse(which)}:{unparse(which)} + 1")
    size = unparse(bracket(values[0], 12))
    return _write_along(axis, f"{size} * {unparse(which)}:{size} * ({unparse(which)} + 1)")


def _write_entry_along(rows: cst.BaseExpression, which: cst.BaseExpression) -> str | None:
    """Return an entry of `tuple(x)` or `tuple(jnp.moveaxis(x, 1, 0))`, which are x.unbind() and x.unbind(1)."""
    if unparse(rows) == HOLE:
        return unparse(bracket(which, 1))
    axes = [read_literal(a.value) for a in rows.args[1:]] if isinstance(rows, cst.Call) else []
    moved = len(axes) == 2 and unparse(rows.func) == "jnp.moveaxis" and unparse(rows.args[0].value) == HOLE  # type: ignore[attr-defined] # a call
    return (
        _write_along(axes[0], unparse(bracket(which, 1))) if moved and type(axes[0]) is int and axes[1] == 0 else None
    )


def _write_outer_piece(axis: int, k: object, pieces: object, new: cst.BaseExpression) -> str | None:
    """Return the first or the last piece of several, as long as the variable that holds it."""
    if not isinstance(new, cst.Name) or type(pieces) is not int or pieces < 2:
        return None
    length = f"{new.value}.shape[{axis}]"
    return _write_along(axis, f":{length}" if k == 0 else f"-{length}:") if k in {0, pieces - 1} else None


def _split_arguments(view: cst.Call) -> tuple[list[cst.BaseExpression], int | None]:
    """Return the arguments of a view after the array, and its axis if that is a literal."""
    named = {a.keyword.value: a.value for a in view.args if a.keyword}
    axis = read_literal(named["axis"]) if "axis" in named else 0
    known = type(axis) is int and unparse(view.args[0].value) == HOLE
    return [a.value for a in view.args[1:] if not a.keyword], axis if known else None  # type: ignore[return-value] # an int


def _write_along(axis: int | None, index: str) -> str | None:
    """Return an index for one axis."""
    if axis is None:
        return None
    return ", ".join([":"] * axis + [index] if axis >= 0 else ["...", index, *[":"] * (-axis - 1)])
