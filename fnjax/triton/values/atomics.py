"""Atomics: for all programs at once where their old values are not used, else program by program."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from fnjax.triton.values import types
from fnjax.triton.values.affine import ArrayMap, Shape, leading
from fnjax.triton.values.arithmetic import as_tensor, broadcast, cast, where
from fnjax.triton.values.bounds import refuse_outside
from fnjax.triton.values.exceptions import NeedsSequence, NotVectorizable
from fnjax.triton.values.independence import are_distinct
from fnjax.triton.values.memory import active_lanes, flat_lanes, read_as
from fnjax.triton.values.pointers import AnyPointer, Pointer, SelectedPointer
from fnjax.triton.values.rows import update_rows
from fnjax.triton.values.state import State, current
from fnjax.triton.values.tensor import Operand, Tensor, canonical

COMBINE: dict[str, Callable[..., jax.Array]] = {
    "add": lambda old, new: old + new,
    "max": jnp.maximum,
    "min": jnp.minimum,
    "and": jnp.bitwise_and,
    "or": jnp.bitwise_or,
    "xor": jnp.bitwise_xor,
    "xchg": lambda old, new: new,
}


class UnusedOldValue(Tensor):
    """Old value of an atomic that was applied for all programs at once: any use of it raises NeedsSequence."""

    def __init__(self, kind: types.dtype, shape: Shape) -> None:
        self._type, self.shape = kind, shape

    def map_leading(self, change: ArrayMap) -> UnusedOldValue:
        """Return itself: it holds no array."""
        return self

    def _asked(self, *_: object) -> None:
        """Raise NeedsSequence: the old value is used."""
        raise NeedsSequence

    data = affine = conditions = rest = known = _data = property(_asked)


def update(name: str, pointer: AnyPointer, value: Operand, mask: Operand | None, sem: object = None) -> Tensor:
    """Apply an atomic operation to memory and return the old values.

    Args:
        name: "add", "max", "min", "and", "or", "xor" or "xchg".
        pointer: the addresses.
        value: the operand, broadcast to them.
        mask: lanes that take part, or None for all.
        sem: Triton's memory order; only `kernel.check` looks at it.

    Raises:
        IndexError: an unmasked lane is certainly outside of the array.
        NeedsSequence: it is "xchg", whose result depends on the order of programs, in a grid of several programs.
        NotVectorizable: programs run in sequence, and a loop is vectorised.
    """
    if isinstance(pointer, SelectedPointer):
        old = [update(name, side, value, lanes, sem) for side, lanes in pointer.sides(mask)]
        return old[0] if isinstance(old[0], UnusedOldValue) else where(pointer.mask, *old)
    state = current()
    if pointer.own is not None:
        with read_as(state, pointer) as plain:
            return update(name, plain, value, mask, sem)
    value = cast(as_tensor(value), pointer.element)
    broadcast(value, pointer.shape)
    lanes = active_lanes(state, mask, pointer.shape)
    if state.execution is not None:
        found: Tensor = state.execution.atomic(name, pointer, lanes, value, None, sem)
        return found
    memory = state.buffers[pointer.buffer]
    alone = state.in_sequence or all(n == 1 for n in state.grid)
    if alone and state.vectorized_loops:
        raise NotVectorizable
    state.record_access(name, pointer.buffer, None, ())
    if not alone and name == "xchg":
        raise NeedsSequence
    refuse_outside(state, "updates", pointer, lanes)
    if not alone and name in ("add", "max", "min"):
        updated = update_rows(state, name, pointer, value, lanes)
        if updated is not None:
            state.buffers[pointer.buffer] = updated
            return UnusedOldValue(pointer.element, pointer.shape)
    index, data = flat_lanes(state, pointer, lanes, value)
    data = data.astype(canonical(pointer.element))
    if not alone:
        state.buffers[pointer.buffer] = _at_once(name, memory, index, data)
        return UnusedOldValue(pointer.element, pointer.shape)
    return _one_by_one(state, COMBINE[name], pointer, index, data)


def _at_once(name: str, memory: jax.Array, index: jax.Array, data: jax.Array) -> jax.Array:
    """Return memory after all lanes of all programs have applied the atomic; their order does not matter."""
    at = memory.at[index]
    if name in ("add", "max", "min"):
        new: jax.Array = getattr(at, name)(data, mode="drop")
        return new
    if name == "xchg":
        return at.set(data, mode="drop")
    return _in_turn(COMBINE[name], memory, index, data)[0]


def _in_turn(
    combine: Callable[..., jax.Array], memory: jax.Array, index: jax.Array, *data: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Apply an atomic lane after lane; return memory and the old value of each lane."""

    def lane(i: jax.Array, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        held, old = carry
        before = held.at[index[i]].get(mode="fill", fill_value=0)
        return held.at[index[i]].set(combine(before, *(x[i] for x in data)), mode="drop"), old.at[i].set(before)

    found: tuple[jax.Array, jax.Array] = lax.fori_loop(0, index.shape[0], lane, (memory, _old_values(memory, index)))
    return found


def _old_values(memory: jax.Array, index: jax.Array) -> jax.Array:
    """Return zeros for the old values; inside of shard_map they are device-varying where memory is."""
    return jnp.zeros(index.shape, memory.dtype) + jnp.zeros_like(memory, shape=())


def _one_by_one(
    state: State, combine: Callable[..., jax.Array], pointer: Pointer, index: jax.Array, *data: jax.Array
) -> Tensor:
    """Apply the atomic for one program, lanes in their order, and return the old values as a tensor."""
    affine, memory = pointer.offset.affine, state.buffers[pointer.buffer]
    if index.shape[0] == 1 or (affine is not None and are_distinct(zip(affine.strides, affine.shape, strict=True))):
        old = memory.at[index].get(mode="fill", fill_value=0)
        new = memory.at[index].set(combine(old, *data), mode="drop")
    else:
        new, old = _in_turn(combine, memory, index, *data)
    state.buffers[pointer.buffer] = new
    return Tensor(old.reshape((1,) * leading() + tuple(pointer.shape)), pointer.element, pointer.shape)


def compare_and_swap(
    pointer: AnyPointer, expected: Operand, value: Operand, mask: Operand | None, sem: object = None
) -> Tensor:
    """Store `value` where memory equals `expected`, lane after lane where `mask` holds, and return the old values.

    Raises:
        IndexError: a lane is certainly outside of the array.
        NeedsSequence: the grid has several programs and they do not run in sequence yet.
        NotVectorizable: a loop is vectorised.
    """
    if isinstance(pointer, SelectedPointer):
        sides = pointer.sides(mask)
        return where(pointer.mask, *(compare_and_swap(side, expected, value, lanes, sem) for side, lanes in sides))
    state = current()
    if pointer.own is not None:
        with read_as(state, pointer) as plain:
            return compare_and_swap(plain, expected, value, mask, sem)
    expected, value = (broadcast(cast(as_tensor(v), pointer.element), pointer.shape) for v in (expected, value))
    lanes = active_lanes(state, mask, pointer.shape)
    if state.execution is not None:
        old: Tensor = state.execution.atomic("cas", pointer, lanes, value, expected, sem)
        return old
    if not (state.in_sequence or all(n == 1 for n in state.grid)):
        raise NeedsSequence
    if state.vectorized_loops:
        raise NotVectorizable
    memory = state.buffers[pointer.buffer]
    refuse_outside(state, "updates", pointer, lanes)
    index, data, wanted = flat_lanes(state, pointer, lanes, value, expected)
    data, wanted = data.astype(memory.dtype), wanted.astype(memory.dtype)
    return _one_by_one(state, _swapped, pointer, index, data, wanted)


def _swapped(old: jax.Array, new: jax.Array, expected: jax.Array) -> jax.Array:
    """Return what compare and swap leaves in memory."""
    return jnp.where(old == expected, new, old)
