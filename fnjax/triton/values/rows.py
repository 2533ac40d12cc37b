"""Loads and atomics by rows: an address is the number of a row, not known, times a length, plus an affine part."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from fnjax.triton.values import types
from fnjax.triton.values.affine import Affine, leading
from fnjax.triton.values.pointers import Pointer
from fnjax.triton.values.state import State
from fnjax.triton.values.tensor import Tensor, aligned, as_block, canonical, is_narrowed, with_conditions
from fnjax.triton.values.views import View, find_view


class RowRange(NamedTuple):
    """Addresses that are the same range of columns for each row.

    Attributes:
        number: the rows' numbers, a tensor.
        length: the number of elements of a row.
        view: of one row, the range of columns.
        window: the leading and block axes that lie along the columns, slowest first.
        conditions: those of the mask that the view does not express.
    """

    number: Tensor
    length: int
    view: View
    window: list[int]
    conditions: tuple[Affine, ...]

    def split(self, memory: jax.Array) -> tuple[jax.Array, jax.Array, slice]:
        """Return memory by rows, the numbers as an array over leading and block axes, and the columns."""
        rows, (one,) = memory.reshape(-1, self.length), self.view.dimensions
        number = aligned(self.number.array(), self.view.rank - self.view.leading)
        columns = slice(one.start + one.low, one.start + one.high)
        return rows, _wrapped(number, self.length, len(rows), self.number.dtype), columns


def row_range(pointer: Pointer, lanes: Tensor | None, memory: jax.Array) -> RowRange | None:
    """Return addresses in flat memory as rows; None where they are not the same range of columns for each row."""
    if pointer.offset.row is None:
        return None
    row, length, rest = pointer.offset.row
    shape = pointer.shape
    rest = as_block(rest, shape)
    conditions = [] if lanes is None else [as_block(c, shape) for c in lanes.conditions or ()]
    view = find_view(rest, conditions, 1 + max(length, rest.limits()[1]))
    if view is None or not _is_range(view, length) or memory.shape[0] % length or not memory.shape[0]:
        return None
    window = [d for d, _ in view.axes[0].parts]
    if any(aligned(row.array(), len(shape)).shape[d] > 1 for d in window):
        return None
    return RowRange(row, length, view, window, tuple(conditions[i] for i in view.remaining))


def read_rows(pointer: Pointer, lanes: Tensor | None, memory: jax.Array) -> jax.Array | None:
    """Return the elements of flat memory at an address, over leading and block axes, rather by rows than by elements.

    Lanes that the mask leaves out hold any element, or zero. None where the address is not by rows.
    """
    found = row_range(pointer, lanes, memory)
    if found is None:
        return None
    rows, number, columns = found.split(memory)
    (one,), window = found.view.dimensions, found.window
    at = rows.at[jnp.clip(number.reshape(-1), 0, len(rows) - 1), columns]
    data = jnp.pad(at.get(mode="promise_in_bounds"), [(0, 0), (one.low, one.size - one.high)])
    others = [d for d in range(found.view.rank) if d not in window]
    data = data.reshape([*(number.shape[d] for d in others), *(size for _, size in found.view.axes[0].parts)])
    return data.transpose([[*others, *window].index(d) for d in range(found.view.rank)])


def update_rows(state: State, name: str, pointer: Pointer, value: Tensor, lanes: Tensor | None) -> jax.Array | None:
    """Return memory after an atomic of all programs at once, by rows rather than by elements.

    Args:
        state: of the launch.
        name: "add", "max" or "min".
        pointer: the addresses.
        value: the operand.
        lanes: the mask, or None.

    Returns:
        None where the addresses are not the same range of columns for each row.
    """
    memory = state.buffers[pointer.buffer]
    found = row_range(pointer, lanes, memory)
    if found is None:
        return None
    shape, rank, window = pointer.shape, found.view.rank, found.window
    mask = with_conditions(lanes, found.conditions)
    held = [] if mask is None else [aligned(mask.array(), len(shape))]
    if any(a.shape[d] > 1 for a in held for d in window):
        return None
    rows, number, columns = found.split(memory)
    sizes = (*state.lead, *shape)
    order = [d for d in (*state.in_grid_order(), *range(leading(), rank)) if d not in window]
    alone = [1 if d in window else n for d, n in enumerate(sizes)]
    index, *held = (jnp.broadcast_to(a, alone).transpose(*order, *window).reshape(-1) for a in (number, *held))
    outside = (index < 0) | (index >= len(rows))
    index = jnp.where(outside | ~held[0] if held else outside, len(rows), index)
    data = jnp.broadcast_to(aligned(value.array(), len(shape)), sizes).transpose(*order, *window)
    (one,) = found.view.dimensions
    data = data.reshape(len(index), -1)[:, one.low : one.high].astype(canonical(pointer.element))
    at = rows.at[index] if columns == slice(0, found.length) else rows.at[index, columns]
    new: jax.Array = getattr(at, name)(data, mode="drop")
    return new.reshape(-1)


def _wrapped(index: jax.Array, length: int, count: int, kind: types.dtype) -> jax.Array:
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
