"""Atomics on rows of memory: the address is a row's number that is not known, times a length, plus an affine part."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from fnjax.triton.values import types
from fnjax.triton.values.affine import leading
from fnjax.triton.values.state import current
from fnjax.triton.values.tensor import Tensor, aligned, as_block, canonical, is_narrowed
from fnjax.triton.values.views import View, find_view


def update_rows(name: str, pointer: Any, value: Tensor, lanes: Tensor | None, memory: Any) -> Any:
    """Return memory after an atomic of all programs at once, by rows rather than by elements.

    Args:
        name: "add", "max" or "min".
        pointer: the addresses.
        value: the operand.
        lanes: the mask, or None.
        memory: the array, flat.

    Returns:
        None where the addresses are not the same range of columns for each row.
    """
    if pointer.offset.row is None:
        return None
    row, length, rest = pointer.offset.row
    shape, rank = pointer.shape, leading() + len(pointer.shape)
    rest = as_block(rest, shape)
    conditions = [] if lanes is None else [as_block(c, shape) for c in lanes.conditions or ()]
    view = find_view(rest, conditions, 1 + max(length, rest.limits()[1]))
    if view is None or not _is_range(view, length) or memory.shape[0] % length:
        return None
    window = [d for d, _ in view.axes[0].parts]
    mask = _remaining(lanes, [conditions[i] for i in view.remaining])
    along = [aligned(t.array(), len(shape)) for t in (row, *([] if mask is None else [mask]))]
    if any(a.shape[d] > 1 for a in along for d in window):
        return None
    sizes = (*current().lead, *shape)
    order = [d for d in (*current().in_grid_order(), *range(leading(), rank)) if d not in window]
    alone = [1 if d in window else n for d, n in enumerate(sizes)]
    index, *held = (jnp.broadcast_to(a, alone).transpose(*order, *window).reshape(-1) for a in along)
    rows = memory.reshape(-1, length)
    index = _wrapped(index, length, len(rows), row.dtype)
    outside = (index < 0) | (index >= len(rows))
    index = jnp.where(outside | ~held[0] if held else outside, len(rows), index)
    data = jnp.broadcast_to(aligned(value.array(), len(shape)), sizes).transpose(*order, *window)
    (one,) = view.dimensions
    data = data.reshape(len(index), -1)[:, one.low : one.high].astype(canonical(pointer.element))
    columns = slice(one.start + one.low, one.start + one.high)
    at = rows.at[index] if columns == slice(0, length) else rows.at[index, columns]
    return getattr(at, name)(data, mode="drop").reshape(-1)


def _wrapped(index: Any, length: int, count: int, kind: types.dtype) -> Any:
    """Return the rows where index · length begins, after it has wrapped; `count` where that is inside of a row.

    Of int64 it would wrap only where JAX has no 64 bits.
    """
    start = index * length
    return index if is_narrowed(kind) else jnp.where(start % length == 0, start // length, count)


def _is_range(view: View, length: int) -> bool:
    """Return True where a view is one range of columns of a row, without what would be in the rows before and after."""
    one = view.dimensions[0]
    inside = one.start >= 0 and one.start + one.high <= length and one.low < one.high
    return len(view.dimensions) == 1 and bool(view.axes[0].parts) and not one.terms and inside


def _remaining(lanes: Tensor | None, conditions: list[Any]) -> Tensor | None:
    """Return the part of a mask that a view does not express; None if there is none."""
    if lanes is None or lanes.conditions is None or not conditions:
        return lanes if lanes is None or lanes.conditions is None else lanes.rest
    return Tensor(None, types.int1, lanes.shape, conditions=tuple(conditions), rest=lanes.rest)
