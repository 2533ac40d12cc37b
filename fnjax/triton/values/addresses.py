"""Addresses as views of memory, if they are such, and reads through views."""

from __future__ import annotations

import itertools

import jax
from jax import lax

from fnjax.triton.values import views
from fnjax.triton.values.affine import Affine, Shape
from fnjax.triton.values.arithmetic import as_tensor, broadcast
from fnjax.triton.values.exceptions import NeedsGridSplit, NotVectorizable
from fnjax.triton.values.pointers import Pointer
from fnjax.triton.values.state import Rows, State
from fnjax.triton.values.tensor import Concatenated, Operand, Tensor, as_block, with_conditions
from fnjax.triton.values.views import Layout, View


def view_of(state: State, kind: str, pointer: Pointer, lanes: Tensor | None) -> tuple[View | None, Tensor | None]:
    """Return the view for an address (None: there is none), and the part of the mask that it does not express.

    Raises:
        NeedsGridSplit: the address becomes a view when axes of the grid are split.
        NotVectorizable: it is not a view while a loop is vectorised.
    """
    affine = pointer.offset.affine
    conditions = list(lanes.conditions) if lanes is not None and lanes.conditions is not None else []
    if affine is not None:
        conditions = [as_block(c, affine.shape) for c in conditions]
    state.record_access(kind, pointer.buffer, affine, conditions)
    if affine is None:
        return None, lanes
    view = views.find_view(affine, conditions, state.buffers[pointer.buffer].shape[0])
    if view is None:
        _try_otherwise(affine, state)
        return None, lanes
    return view, with_conditions(lanes, tuple(conditions[i] for i in view.remaining))


def rows_of(state: State, buffer: int, layout: Layout) -> jax.Array:
    """Return memory in a layout; if it was stored in the same layout, as it was stored."""
    memory, written = state.buffers[buffer], state.rows.get(buffer)
    if written is not None and written.flat is memory and written.layout == layout:
        return written.rows
    return views.as_rows(memory, layout)


def set_rows(state: State, buffer: int, layout: Layout, rows: jax.Array) -> None:
    """Replace memory by what is given in a layout; in sequential loops the layout is kept for the next access."""
    flat = state.buffers[buffer] = views.as_flat(rows, layout, state.buffers[buffer].shape[0])
    if state.traced:
        state.rows[buffer] = Rows(flat, layout, rows)


def _rows_of(state: State, buffer: int, view: View) -> jax.Array:
    """Return memory reshaped for a view; in loops that do not write it, as it was reshaped before the first iteration.

    Reshaped in each iteration, it would be differentiated in each iteration: a gradient as large as memory every time.
    """
    memory, key = state.buffers[buffer], (buffer, view.layout)
    if state.traced and view.dynamic:
        found = state.reshaped.get(key)
        if found is not None and found[0] is memory:
            return found[1]
        state.to_reshape.add(key)
    return rows_of(state, buffer, view.layout)


def read(state: State, buffer: int, view: View) -> jax.Array:
    """Return the elements of a view.

    In an unrolled loop, each iteration splits what the ones before have left of memory: the derivative of splits is one
    concatenation. That of slices would be, for each iteration, an array as large as memory that is zero outside of its
    slice, and the sum of these.
    """
    if state.streams is not None:
        found: jax.Array | None = state.streams.read(buffer, view, state.outputs, state.buffers[buffer].dtype)
        if found is not None:
            return found
    rows = _rows_of(state, buffer, view)
    single_slice = view.single_slice if state.unrolled_loops and not state.traced else None
    if single_slice is None:
        return views.read(rows, view)
    axis, first, end = single_slice
    known = state.slices.get((buffer, view.layout, axis))
    if known is None or known[0] is not state.buffers[buffer]:
        known = state.slices[buffer, view.layout, axis] = state.buffers[buffer], [(0, rows)]
    slices = known[1]
    for at, (start, one) in enumerate(slices):
        stop = start + one.shape[axis]
        if start <= first and end <= stop:
            edges = sorted({start, first, end, stop})
            sizes = [b - a for a, b in itertools.pairwise(edges)]
            slices[at : at + 1] = zip(edges, lax.split(one, sizes, axis=axis), strict=False)
            return dict(slices)[first]
    return views.read(rows, view)  # it overlaps a slice of another iteration


def write(state: State, buffer: int, view: View, value: jax.Array) -> None:
    """Replace the elements of a view; in a sequential loop they become rows of a stream, where they are such."""
    key = None if state.streams is None else state.streams.key(buffer, view)
    if key is not None:
        state.outputs = {k: v for k, v in state.outputs.items() if k != key} | {key: value}
        return
    set_rows(state, buffer, view.layout, views.write(rows_of(state, buffer, view.layout), view, value))


def _try_otherwise(affine: Affine, state: State) -> None:
    """Raise where an address that is not a view may become one if the kernel is interpreted in another way.

    Raises:
        NeedsGridSplit: the address becomes affine when axes of the grid are split.
        NotVectorizable: a loop is vectorised; it may be a view in a single iteration.
    """
    if not state.in_sequence and (radix := views.mixed_radix_of(affine)):
        splits = state.split_grid(radix)
        if splits is not None:
            raise NeedsGridSplit(splits)
    if state.vectorized_loops:
        raise NotVectorizable


def without_tail(rows: jax.Array, view: View, pointer: Pointer, fill: Operand) -> Tensor:
    """Return the elements of a view with a tail (`View.tail`), which holds `fill`."""
    data = views.to_block(rows, view, without_tail=True)
    axis, sizes = tail_of(view, pointer)
    shapes = [_with_size(pointer.shape, axis, size) for size in sizes]
    return Concatenated(
        [Tensor(data, pointer.element, shapes[0]), broadcast(as_tensor(fill, pointer.element), shapes[1])], axis
    )


def tail_of(view: View, pointer: Pointer) -> tuple[int, tuple[int, int]]:
    """Return the axis of a view's tail, counted from the last, and the sizes of what is in memory and of the tail."""
    at, size = view.tail  # type: ignore[misc]  # there is one
    return at - view.rank, (size, pointer.shape[at - view.leading] - size)


def _with_size(shape: Shape, axis: int, size: int) -> Shape:
    return tuple(size if d == len(shape) + axis else n for d, n in enumerate(shape))
