"""Pointers, loads and stores: by a view of flat memory where the address is one, else by gather and scatter."""

import dataclasses
import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from fnjax.triton.values import types, views
from fnjax.triton.values.affine import LEAD, number
from fnjax.triton.values.arithmetic import add, as_tensor, both, broadcast, cast, negation, of_form, where
from fnjax.triton.values.bounds import refuse_outside
from fnjax.triton.values.exceptions import CutsGrid, NotAnAxis
from fnjax.triton.values.state import current
from fnjax.triton.values.tensor import Tensor, canonical


@dataclasses.dataclass(frozen=True, eq=False)
class Pointer:
    """Address in a buffer: the number of elements, of type `element`, from its start."""

    buffer: int
    element: types.dtype
    offset: Tensor

    dtype = property(lambda self: types.pointer_type(self.element))
    type = dtype
    shape = property(lambda self: self.offset.shape)

    def __add__(self, other):
        return Pointer(self.buffer, self.element, add(self.offset, _offset(other)))

    __radd__ = __add__

    def __sub__(self, other):
        return Pointer(self.buffer, self.element, add(self.offset, -_offset(other)))

    def __getitem__(self, index):
        return Pointer(self.buffer, self.element, self.offset[index])

    def to(self, kind, bitcast=False):
        """Return the pointer as one to another type, which must be its own.

        Raises:
            TypeError: `kind` is another type: arrays are not reinterpreted.
        """
        kind = types.as_type(kind)
        if isinstance(kind, types.pointer_type) and kind.element_ty == self.element:
            return self
        raise TypeError(f"a pointer to {self.element} cannot be read as {kind}: pass the array in that dtype")


@dataclasses.dataclass(frozen=True, eq=False)
class Choice:
    """Selection between two pointers, possibly into different arrays: `yes` where the mask `truth` holds, else `no`."""

    truth: Tensor
    yes: Any
    no: Any

    dtype = property(lambda self: self.yes.dtype)
    element = property(lambda self: self.yes.element)
    shape = property(lambda self: np.broadcast_shapes(self.yes.shape, self.no.shape))

    def __add__(self, other):
        return Choice(self.truth, self.yes + other, self.no + other)

    __radd__ = __add__

    def __sub__(self, other):
        return Choice(self.truth, self.yes - other, self.no - other)

    def __getitem__(self, index):
        return Choice(self.truth, self.yes[index], self.no[index])


def _offset(value):
    """Return the right operand of pointer arithmetic as int64; TypeError where it is a pointer or not an integer."""
    if isinstance(value, Pointer | Choice):
        raise TypeError("two pointers are added or subtracted")
    value = as_tensor(value)
    if not value.dtype.is_int():
        raise TypeError(f"a pointer moves by whole numbers, not by {value.dtype}")
    return cast(value, types.int64)


def pointer_to(buffer, element):
    """Return a pointer to the first element of a buffer."""
    return Pointer(buffer, element, of_form(number(0), types.int64))


def _truth_of(mask, shape):
    """Return the logical and of a mask and the mask of active lanes; None if all lanes take part."""
    active = current().active
    if mask is None:
        return active
    mask = as_tensor(mask)
    if np.broadcast_shapes(mask.shape, shape) == shape:
        mask = broadcast(mask, shape)
    return mask if active is None else both(mask, active)


def _plan(kind, pointer, truth, length):
    """Return the view for an address (None: there is none), and the part of the mask that it does not express.

    Raises:
        CutsGrid: the address becomes a view when axes of the grid are split.
        NotAnAxis: it is not a view while a loop is vectorised.
    """
    form, state = pointer.offset.form, current()
    conditions = list(truth.conditions) if truth is not None and truth.conditions is not None else []
    if form is not None:
        conditions = [c.reshaped(form.shape, (0,) * (len(form.shape) - len(c.shape)) + c.strides) for c in conditions]
    state.note(kind, pointer.buffer, form, conditions)
    if form is None:
        return None, truth
    plan = views.plan(form, conditions, length)
    if plan is None or (kind == "write" and plan.made_up):
        _try_otherwise(form, state)
    if plan is None or truth is None:
        return plan, truth
    if truth.conditions is None:
        return plan, truth
    left = tuple(conditions[i] for i in plan.left)
    if not left:
        return plan, truth.rest
    return plan, Tensor(None, types.int1, truth.shape, conditions=left, rest=truth.rest)


def _cut(state, buffer, plan):
    """Return memory reshaped for a view; in loops that do not write it, as it was reshaped before the first iteration.

    Reshaped in each iteration, it would be differentiated in each iteration: a gradient as large as memory every time.
    """
    memory, key = state.buffers[buffer], (buffer, plan.layout)
    if not state.traced or not plan.moving:
        return views.cut(memory, plan.layout)
    whole, found = state.ready.get(key, (None, None))
    if whole is memory:
        return found
    state.wanted.add(key)
    return views.cut(memory, plan.layout)


def _read(state, buffer, plan):
    """Return the elements of a view.

    In an unrolled loop, each iteration splits what the ones before have left of memory: the derivative of splits is one
    concatenation. That of slices would be, for each iteration, an array as large as memory that is zero outside of its
    slice, and the sum of these.
    """
    rows = _cut(state, buffer, plan)
    part = plan.part if state.repeats and not state.traced else None
    if part is None:
        return views.read(rows, plan)
    axis, first, end = part
    memory, pieces = state.pieces.get((buffer, plan.layout, axis), (None, None))
    if memory is not state.buffers[buffer]:
        pieces = [(0, rows)]
        state.pieces[buffer, plan.layout, axis] = state.buffers[buffer], pieces
    for at, (start, piece) in enumerate(pieces):
        stop = start + piece.shape[axis]
        if start <= first and end <= stop:
            edges = sorted({start, first, end, stop})
            sizes = [b - a for a, b in itertools.pairwise(edges)]
            pieces[at : at + 1] = zip(edges, lax.split(piece, sizes, axis=axis), strict=False)
            return dict(pieces)[first]
    return views.read(rows, plan)  # it overlaps a slice of another iteration


def _try_otherwise(form, state):
    """Raise where an address that is not a view may become one if the kernel is interpreted in another way.

    Raises:
        CutsGrid: the address becomes affine when axes of the grid are split.
        NotAnAxis: a loop is vectorised; it may be a view in a single iteration.
    """
    if not state.in_sequence and (digits := views.digits_of(form)):
        cuts = state.cut(digits)
        if cuts is not None:
            raise CutsGrid(cuts)
    if state.turns:
        raise NotAnAxis


def load(pointer, mask=None, other=None, volatile=False):
    """Return the elements at an address; where the mask does not hold, `other` or zero.

    Raises:
        IndexError: an unmasked lane is certainly outside of the array.
    """
    if isinstance(pointer, Choice):
        yes, no = both(_everywhere(mask), pointer.truth), both(_everywhere(mask), negation(pointer.truth))
        return where(pointer.truth, load(pointer.yes, yes, other, volatile), load(pointer.no, no, other, volatile))
    state = current()
    element = pointer.element
    shape = pointer.shape
    if mask is not None:
        shape = np.broadcast_shapes(shape, as_tensor(mask).shape)
    truth = _truth_of(mask, shape)
    if other is not None:
        other = cast(as_tensor(other), element)
    if state.watch is not None:
        return state.watch.load(pointer, shape, truth, other, volatile)
    memory = state.buffers[pointer.buffer]
    refuse_outside("reads", pointer, truth, memory.shape[0])
    plan, left = _plan("read", pointer, truth, memory.shape[0])
    if plan is not None:
        fill = None if other is None else other.uniform()
        data = views.to_block(_read(state, pointer.buffer, plan), plan, fill)
        value = Tensor(data, element, pointer.shape)
        if other is not None and fill is None and plan.clipped:
            left = truth
    else:
        offsets = pointer.offset.array()
        data = (
            memory[jnp.clip(offsets, 0, memory.shape[0] - 1)]
            if memory.shape[0]
            else jnp.zeros(offsets.shape, memory.dtype)
        )
        value, left = Tensor(data, element, pointer.shape), truth
    if left is None:
        return broadcast(value, shape)
    return where(left, broadcast(value, shape), as_tensor(0, element) if other is None else other)


def _everywhere(mask):
    return as_tensor(True) if mask is None else as_tensor(mask)


def store(pointer, value, mask=None):
    """Store a value where the mask holds. Where several programs store to one address, the last one's value stays.

    Raises:
        TypeError: the value's shape does not broadcast to the pointer's.
        IndexError: an unmasked lane is certainly outside of the array.
    """
    if isinstance(pointer, Choice):
        store(pointer.yes, value, both(_everywhere(mask), pointer.truth))
        store(pointer.no, value, both(_everywhere(mask), negation(pointer.truth)))
        return
    state = current()
    value = cast(as_tensor(value), pointer.element)
    shape = np.broadcast_shapes(pointer.shape, value.shape)
    if shape != pointer.shape:
        raise TypeError(f"a block of shape {value.shape} is stored at addresses of shape {pointer.shape}")
    truth = _truth_of(mask, pointer.shape)
    if state.watch is not None:
        state.watch.store(pointer, truth, value)
        return
    memory = state.buffers[pointer.buffer]
    refuse_outside("writes", pointer, truth, memory.shape[0])
    state.written.add(pointer.buffer)
    plan, left = _plan("write", pointer, truth, memory.shape[0])
    if plan is not None and not plan.made_up and _write_view(memory, pointer, plan, left, value):
        return
    _scatter(memory, pointer, truth, value)


def _write_view(memory, pointer, plan, left, value):
    """Store a value through a view; return False, and do nothing, where only the mask says which program is last."""
    state = current()
    full = views.to_block(jnp.zeros([lv.high - lv.low for lv in plan.levels], bool), plan).shape
    block = _over_block(value, full)
    if left is not None:
        choice = _over_block(broadcast(left, pointer.shape), full, truth=True)
        if choice is None:
            return False
        old = views.read(views.cut(memory, plan.layout), plan)
        new = jnp.where(views.from_block(choice, plan), views.from_block(block, plan), old)
    else:
        new = views.from_block(block, plan)
    state.buffers[pointer.buffer] = views.write(memory, plan, new)
    return True


def _over_block(value, full, truth=False):
    """Return a value as an array over the axes of a view.

    Along leading axes that the address does not depend on, the last program's value is taken; a mask that varies along
    such an axis gives None.
    """
    data = value.array()
    data = data.reshape(data.shape[:LEAD] + (1,) * (len(full) - data.ndim) + data.shape[LEAD:])
    for axis, size in enumerate(full):
        if size == 1 and data.shape[axis] > 1:
            if truth:
                return None
            data = data[tuple(slice(-1, None) if d == axis else slice(None) for d in range(data.ndim))]
    return jnp.broadcast_to(data, full)


def flat_lanes(memory, pointer, truth, *values):
    """Return flat indices and values of all lanes, in the order of programs.

    Masked lanes and lanes outside of the array have the array's length as their index, which scatters drop.
    """
    arrays = [broadcast(v, pointer.shape).array() for v in values]
    offsets = broadcast(pointer.offset, pointer.shape).array()
    if truth is not None:
        arrays.append(broadcast(truth, pointer.shape).array())
    rank = LEAD + len(pointer.shape)
    arrays = [a.reshape(a.shape[:LEAD] + (1,) * (rank - a.ndim) + a.shape[LEAD:]) for a in (offsets, *arrays)]
    wide = np.broadcast_shapes(*(a.shape for a in arrays), (1,) * LEAD + pointer.shape)
    wide = current().lead + wide[LEAD:]
    arrays = [jnp.broadcast_to(a, wide).reshape(-1) for a in arrays]
    index, length = arrays[0], memory.shape[0]
    outside = (index < 0) | (index >= length)
    if truth is not None:
        outside = outside | ~arrays.pop()
    return jnp.where(outside, length, index), *arrays[1:]


def _scatter(memory, pointer, truth, value):
    """Store a value by a scatter in which, for each address, only the last lane writes."""
    index, data = flat_lanes(memory, pointer, truth, value)
    order = jnp.arange(index.shape[0], dtype=jnp.int32)
    last = jnp.full(memory.shape, -1, jnp.int32).at[index].max(order, mode="drop")
    index = jnp.where(last.at[index].get(mode="fill", fill_value=-1) == order, index, memory.shape[0])
    current().buffers[pointer.buffer] = memory.at[index].set(data.astype(canonical(pointer.element)), mode="drop")
