"""Loads and stores: by a view of flat memory where the address is one, else by gather and scatter."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fnjax.triton.values import types, views
from fnjax.triton.values.addresses import read, tail_of, view_of, without_tail, write
from fnjax.triton.values.affine import MANY, Shape, leading
from fnjax.triton.values.arithmetic import as_tensor, broadcast, cast, logical_and, logical_not, where
from fnjax.triton.values.bounds import refuse_outside
from fnjax.triton.values.pointers import AnyPointer, Pointer, SelectedPointer, has_width
from fnjax.triton.values.rows import read_rows
from fnjax.triton.values.state import State, current
from fnjax.triton.values.tensor import Guarded, Operand, Tensor, aligned, canonical, is_narrowed, needs_64_bits, part_of
from fnjax.triton.values.views import View


def active_lanes(state: State, mask: Operand | None, shape: Shape) -> Tensor | None:
    """Return the logical and of a mask and the mask of active lanes; None if all lanes take part.

    Raises:
        TypeError: the mask does not broadcast to the shape of the addresses.
    """
    active: Tensor | None = state.active
    if mask is None:
        return active
    mask = broadcast(mask, shape)
    return mask if active is None else logical_and(mask, active)


def load(
    pointer: AnyPointer, mask: Operand | None = None, other: Operand | None = None, volatile: bool = False
) -> Tensor:
    """Return the elements at an address; where the mask does not hold, `other` or zero.

    Raises:
        IndexError: an unmasked lane is certainly outside of the array.
    """
    if isinstance(pointer, SelectedPointer):
        return where(pointer.mask, *(load(side, lanes, other, volatile) for side, lanes in pointer.sides(mask)))
    if pointer.own is not None:
        return load_bits(pointer, mask, other, volatile)
    state = current()
    element, shape = pointer.element, pointer.shape
    lanes = active_lanes(state, mask, shape)
    if other is not None:
        other = cast(as_tensor(other), element)
    if state.execution is not None:
        loaded: Tensor = state.execution.load(pointer, shape, lanes, other, volatile)
        return loaded
    memory = state.buffers[pointer.buffer]
    if refuse_outside(state, "reads", pointer, lanes):
        inside = logical_and(pointer.offset >= 0, pointer.offset < memory.shape[0])
        nothing = float("nan") if element.is_floating() else 0
        lets_through = everywhere(mask)
        found = load(pointer, logical_and(lets_through, inside), other, volatile)
        return where(logical_and(lets_through, logical_not(inside)), as_tensor(nothing, element), found)
    view, remaining = view_of(state, "read", pointer, lanes)
    fill = None if other is None else other.uniform()
    if view is not None:
        rows = read(state, pointer.buffer, view)
        if view.tail is not None and element.is_floating() and (other is None or fill is not None):
            value = without_tail(rows, view, pointer, 0 if other is None else other)
        else:
            value = Tensor(views.to_block(rows, view, fill), element, pointer.shape)
        if other is not None and fill is None and view.clipped:
            remaining = lanes
    else:
        data = read_rows(pointer, lanes, memory)
        if data is None:
            offsets = _by_elements(pointer, memory).array()
            some = memory if memory.shape[0] else jnp.zeros(1, memory.dtype)
            data = some[jnp.clip(offsets, 0, some.shape[0] - 1)]
        value, remaining = Tensor(data, element, pointer.shape), lanes
    if remaining is None:
        return broadcast(value, shape)
    zero = view is not None and (other is None or fill == 0)
    if zero and (going := _other_programs(state, remaining, pointer)) is not None:
        return Guarded(broadcast(value, shape), going, lambda mask, x: where(mask, x, as_tensor(0, element)))
    return where(remaining, broadcast(value, shape), as_tensor(0, element) if other is None else other)


def _other_programs(state: State, mask: Tensor, pointer: Pointer) -> Tensor | None:
    """Return a mask as a scalar of each program; None where lanes differ, or addresses along the same leading axes."""
    affine = pointer.offset.affine
    if mask.conditions is None or mask.rest is not None or affine is None or state.vectorized_loops:
        return None
    alike = all(n == 1 or m > 1 for c in mask.conditions for m, n in zip(affine.base.shape, c.base.shape, strict=True))
    if alike or any(any(c.strides) for c in mask.conditions):
        return None
    return Tensor(None, types.int1, (), conditions=tuple(c.reshaped((), ()) for c in mask.conditions))


def _by_elements(pointer: Pointer, memory: jax.Array) -> Tensor:
    """Return the offset of a pointer for an access to each element; TypeError where it takes bits that JAX lacks."""
    if memory.shape[0] > MANY and is_narrowed(types.int64):
        raise needs_64_bits(f"an address in an array of {memory.shape[0]} elements")
    return pointer.offset


def everywhere(mask: Operand | None) -> Tensor:
    """Return a mask; for None, the one of all lanes."""
    return as_tensor(True) if mask is None else as_tensor(mask)


def store(pointer: AnyPointer, value: Operand, mask: Operand | None = None) -> None:
    """Store a value where the mask holds. Where several programs store to one address, the last one's value stays.

    Raises:
        TypeError: the value's shape does not broadcast to the pointer's.
        IndexError: an unmasked lane is certainly outside of the array.
    """
    if isinstance(pointer, SelectedPointer):
        for side, of_side in pointer.sides(mask):
            store(side, value, of_side)
        return
    if pointer.own is not None:
        store_bits(pointer, value, mask)
        return
    state = current()
    value = cast(as_tensor(value), pointer.element)
    broadcast(value, pointer.shape)
    lanes = active_lanes(state, mask, pointer.shape)
    if state.execution is not None:
        state.execution.store(pointer, lanes, value)
        return
    refuse_outside(state, "writes", pointer, lanes)
    view, remaining = view_of(state, "write", pointer, lanes)
    if view is not None and _write_view(state, pointer, view, remaining, value):
        return
    _scatter(state, pointer, lanes, value)


def _write_view(state: State, pointer: Pointer, view: View, remaining: Tensor | None, value: Tensor) -> bool:
    """Store a value through a view; return False, and do nothing, if the mask decides which program writes last."""
    sizes = [dim.high - dim.low for dim in view.dimensions]
    full = jax.eval_shape(lambda: views.to_block(jnp.zeros(sizes, bool), view, without_tail=True)).shape
    given = [broadcast(each, pointer.shape) for each in (value, *([] if remaining is None else [remaining]))]
    if view.tail is not None:
        axis, lengths = tail_of(view, pointer)
        given = [part_of(each, axis, lengths, 0) for each in given]
    arrays = [aligned(each.array(), len(full) - leading()) for each in given]
    if remaining is not None and any(size == 1 < n for size, n in zip(full, arrays[1].shape, strict=True)):
        return False
    new, *mask = (views.from_block(_over_block(each, full), view) for each in arrays)
    if mask:
        new = jnp.where(mask[0], new, read(state, pointer.buffer, view))
    write(state, pointer.buffer, view, new)
    return True


def _over_block(data: jax.Array, full: Shape) -> jax.Array:
    """Return an array over the axes of a view: along those that the address does not depend on, the last program's."""
    for axis, size in enumerate(full):
        if size == 1 and data.shape[axis] > 1:
            data = data[tuple(slice(-1, None) if d == axis else slice(None) for d in range(data.ndim))]
    return jnp.broadcast_to(data, full)


def flat_lanes(state: State, pointer: Pointer, lanes: Tensor | None, *values: Tensor) -> tuple[jax.Array, ...]:
    """Return flat indices and values of all lanes, in the order of programs.

    Masked lanes and lanes outside of the array have the array's length as their index, which scatters drop.
    """
    memory = state.buffers[pointer.buffer]
    arrays = [broadcast(v, pointer.shape).array() for v in values]
    offsets = broadcast(_by_elements(pointer, memory), pointer.shape).array()
    if lanes is not None:
        arrays.append(broadcast(lanes, pointer.shape).array())
    arrays = [aligned(a, len(pointer.shape)) for a in (offsets, *arrays)]
    wide = np.broadcast_shapes(*(a.shape for a in arrays), (1,) * leading() + pointer.shape)
    wide = state.lead + wide[leading() :]
    order = (*state.in_grid_order(), *range(leading(), len(wide)))
    arrays = [jnp.broadcast_to(a, wide).transpose(order).reshape(-1) for a in arrays]
    index, length = arrays[0], memory.shape[0]
    outside = (index < 0) | (index >= length)
    if lanes is not None:
        outside = outside | ~arrays.pop()
    return jnp.where(outside, length, index), *arrays[1:]


def _scatter(state: State, pointer: Pointer, lanes: Tensor | None, value: Tensor) -> None:
    """Store a value by a scatter in which, for each address, only the last lane writes."""
    memory = state.buffers[pointer.buffer]
    index, data = flat_lanes(state, pointer, lanes, value)
    order = jnp.arange(index.shape[0], dtype=jnp.int32)
    last = jnp.full(memory.shape, -1, jnp.int32).at[index].max(order, mode="drop")
    index = jnp.where(last.at[index].get(mode="fill", fill_value=-1) == order, index, memory.shape[0])
    state.buffers[pointer.buffer] = memory.at[index].set(data.astype(canonical(pointer.element)), mode="drop")


# ------------------------------------------------------------------------------- arrays whose bits are read as others


def _as_bits(value: Tensor, kind: types.dtype) -> Tensor:
    """Return a value of the same width with its bits read as another type; booleans are 0 and 1."""
    return cast(value, kind, bitcast=types.int1 not in (value.dtype, kind))


def load_bits(pointer: Pointer, mask: Operand | None, other: Operand | None, volatile: bool) -> Tensor:
    """Return elements whose bits are read as another type than the array's."""
    own, kind = pointer.own or pointer.element, pointer.element
    if has_width(own, kind):
        other = None if other is None else _as_bits(cast(as_tensor(other), kind), own)
        return _as_bits(load(Pointer(pointer.buffer, own, pointer.offset), mask, other, volatile), kind)
    with read_as(current(), pointer) as plain:
        return load(plain, mask, other, volatile)


def store_bits(pointer: Pointer, value: Operand, mask: Operand | None) -> None:
    """Store elements whose bits the array holds as another type."""
    own, kind = pointer.own or pointer.element, pointer.element
    value = cast(as_tensor(value), kind)
    if has_width(own, kind):
        store(Pointer(pointer.buffer, own, pointer.offset), _as_bits(value, own), mask)
        return
    with read_as(current(), pointer) as plain:
        store(plain, value, mask)


@contextlib.contextmanager
def read_as(state: State, pointer: Pointer) -> Iterator[Pointer]:
    """Hold an array as the type that its bits are read as, while the context lasts; yield the pointer to that.

    Raises:
        TypeError: `kernel.check` executes the kernel, which follows each element of an array, and the widths differ.
    """
    own, kind, buffer = pointer.own, pointer.element, pointer.buffer
    plain = Pointer(buffer, kind, pointer.offset)
    if own is None or types.int1 in (own, kind):
        raise TypeError(f"an array of {own} is not read as {kind} here: convert it with .astype(...)")
    if state.execution is None:
        before = state.buffers[buffer]
        held = state.buffers[buffer] = _with_type(before, kind)
        try:
            yield plain
        finally:
            after = state.buffers[buffer]
            state.buffers[buffer] = before if after is held else _with_type(after, own)
    elif has_width(own, kind):
        memory = state.execution.memory
        memory[buffer] = memory[buffer].view(kind.array)
        try:
            yield plain
        finally:
            memory[buffer] = memory[buffer].view(own.array)
    else:
        raise TypeError(f"kernel.check does not follow an array of {own} that is read as {kind}")


def _with_type(memory: jax.Array, kind: types.dtype) -> jax.Array:
    """Return flat memory with its bits as another type; bits that do not fill an element are an error of JAX's."""
    target = canonical(kind)
    ratio = target.itemsize // memory.dtype.itemsize
    shaped = memory.reshape(-1, ratio) if ratio > 1 else memory
    return lax.bitcast_convert_type(shaped, target).reshape(-1)
