"""Strided layouts: the elements of a storage that belong to a tensor.

A layout is a NumPy array of bytes that are never read, with one byte per element of the storage: NumPy's views are
PyTorch's views, so NumPy computes shapes, strides, offsets, and whether a reshape is a view. `read` and `write`
translate a layout to slices and reshapes of the storage's array; only layouts whose strides do not nest are gathered.

A storage's array has the shape of the tensor that it was made for. If that is not contiguous, the layout of the storage
has the order of the elements in memory, and the array is transposed when another view of it is read.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from fnjax.torch.errors import NotSupported
from fnjax.torch.memory.strides import is_dense

Layout = np.ndarray[Any, np.dtype[np.int8]]

# Of a shape, the layout of a new contiguous storage.
make_contiguous: Callable[..., Layout] = functools.partial[Any](np.empty, dtype=np.int8)


def make_layout(shape: Sequence[int], strides: Sequence[int] | None = None) -> Layout:
    """Return the layout of a new storage, by default a contiguous one."""
    if strides is None:
        return make_contiguous(tuple(shape))
    memory = make_contiguous(extent_of(shape, strides))
    return np.ndarray(tuple(shape), np.int8, memory, 0, tuple(strides))


def extent_of(shape: Sequence[int], strides: Sequence[int]) -> int:
    """Return the number of elements that a layout spans in memory, with gaps."""
    return 0 if 0 in shape else 1 + sum((n - 1) * s for n, s in zip(shape, strides, strict=True))


def show_flat(whole: Layout) -> Layout:
    """Return the 1-d layout of all elements of a storage, in the order of memory."""
    return np.ndarray(extent_of(whole.shape, whole.strides), np.int8, whole.base if whole.base is not None else whole)


def offset_of(layout: Layout) -> int:
    """Return the index in memory of a layout's first element."""
    memory: Any = layout
    while memory.base is not None:
        memory = memory.base
    return int(layout.__array_interface__["data"][0] - memory.__array_interface__["data"][0]) if layout.size else 0


def insert_axis(layout: Layout, axis: int) -> Layout:
    """Return a view with a new axis of size 1, which has PyTorch's stride."""
    stride = layout.shape[axis] * layout.strides[axis] if axis < layout.ndim else 1
    shape, strides = [*layout.shape], [*layout.strides]
    shape.insert(axis, 1)
    strides.insert(axis, stride)
    return np.lib.stride_tricks.as_strided(layout, shape, strides)


def is_contiguous(layout: Layout) -> bool:
    """Return whether a layout is contiguous."""
    return bool(layout.flags.c_contiguous)


def reshape(layout: Layout, shape: Sequence[int]) -> Layout | None:
    """Return a layout reshaped as a view; None if only a copy can have the shape."""
    try:
        return np.reshape(layout, tuple(shape), copy=False)
    except ValueError:
        return None


class _Blocks(NamedTuple):
    """Position of a layout in its storage, as slices of the padded and reshaped storage.

    Attributes:
        padded: the length of the storage after padding.
        dims: its shape after reshaping; if it has one axis more than `order`, the last axis is the distance between
            two elements.
        starts: the starts of the slices.
        sizes: the sizes of the slices, 1 on that last axis.
        order: for each axis of the block the axis of the layout.
    """

    padded: int
    dims: tuple[int, ...]
    starts: tuple[int, ...]
    sizes: tuple[int, ...]
    order: tuple[int, ...]


@functools.lru_cache(4096)
def _find_blocks(shape: tuple[int, ...], steps: tuple[int, ...], offset: int, total: int) -> _Blocks | None:
    """Return a layout's position as slices; None where the strides do not nest.

    Strides nest if each is a multiple of the next smaller one and the axes do not overlap. Those of x.unfold, or of
    x.as_strided with overlapping rows, do not.

    Args:
        shape: the layout's shape.
        steps: the layout's strides, in elements.
        offset: the index of its first element in the storage.
        total: the number of elements of the storage.
    """
    axes = [i for i, (n, s) in enumerate(zip(shape, steps, strict=True)) if n > 1 and s]
    axes.sort(key=lambda i: -steps[i])
    strides = [steps[i] for i in axes]
    if any(s <= 0 for s in strides) or any(a % b or a == b for a, b in itertools.pairwise(strides)):
        return None
    outer = strides[0] if strides else max(total, 1)
    padded = -(-total // outer) * outer
    radices = [padded // outer, *(a // b for a, b in itertools.pairwise(strides))] if strides else []
    last = strides[-1] if strides else padded
    starts, rest = [], offset
    for stride in strides:
        starts.append(rest // stride)
        rest %= stride
    sizes = [shape[i] for i in axes]
    if any(start + size > radix for start, size, radix in zip(starts, sizes, radices, strict=True)):
        return None
    if last == 1:  # XLA on CPUs is wrong about chains of slices and updates with such an axis (JAX 0.10.2 and 0.12)
        return _Blocks(padded, tuple(radices), tuple(starts), tuple(sizes), tuple(axes))
    return _Blocks(padded, (*radices, last), (*starts, rest), (*sizes, 1), tuple(axes))


def flatten(value: jax.Array, whole: Layout) -> jax.Array:
    """Return a storage's elements in the order of memory; gaps between them are zeros."""
    if whole.flags.c_contiguous:
        return value.reshape(-1)
    if is_dense(whole.shape, whole.strides):
        return jnp.transpose(value, _sort_axes(whole)).reshape(-1)
    return jnp.zeros(extent_of(whole.shape, whole.strides), value.dtype).at[_positions(whole, 0)].set(value)


def unflatten(flat: jax.Array, whole: Layout) -> jax.Array:
    """Return a storage's array from its elements in the order of memory; the inverse of `flatten`."""
    if whole.flags.c_contiguous:
        return flat.reshape(whole.shape)
    if is_dense(whole.shape, whole.strides):
        order = _sort_axes(whole)
        return jnp.transpose(flat.reshape([whole.shape[i] for i in order]), np.argsort(order).tolist())
    return flat[_positions(whole, 0)]


def _sort_axes(layout: Layout) -> list[int]:
    """Return the axes as they are in memory, the innermost last."""
    return sorted(range(layout.ndim), key=lambda i: (-layout.strides[i], layout.shape[i] == 1))


def are_same(a: Layout, b: Layout) -> bool:
    """Return whether two layouts on one storage have the same elements in the same order."""
    return a is b or (a.shape == b.shape and a.strides == b.strides and a.ctypes.data == b.ctypes.data)


def _flatten_if_reordered(value: jax.Array, whole: Layout) -> jax.Array:
    """Return a storage's array in the order of memory; the array itself if the storage is contiguous."""
    return value if whole.flags.c_contiguous else flatten(value, whole)


def _reshape(value: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    return value if value.shape == shape else jax.lax.reshape(value, shape)


def _pad(flat: jax.Array, padded: int) -> jax.Array:
    return flat if flat.size == padded else jnp.pad(flat, (0, padded - flat.size))


def _positions(layout: Layout, offset: int) -> jax.Array:
    """Return the index into the storage of each element."""
    found: Any = jnp.full(layout.shape, offset, jnp.int32)
    for axis, stride in enumerate(layout.strides):
        found = found + stride * jax.lax.broadcasted_iota(jnp.int32, layout.shape, axis)
    return found


def _overlaps(layout: Layout) -> bool:
    """Return whether several elements of a layout have the same position in memory."""
    places = sum(np.ix_(*(s * np.arange(n) for n, s in zip(layout.shape, layout.strides, strict=True))))
    return len(np.unique(places)) < layout.size


def read(value: jax.Array, layout: Layout, whole: Layout) -> jax.Array:
    """Return the elements of a layout, from a storage's array."""
    shape = layout.shape
    if not layout.size:
        return jnp.zeros(shape, value.dtype)
    if are_same(layout, whole):
        return value if value.shape == shape else value.reshape(shape)
    total = extent_of(whole.shape, whole.strides)
    if layout.size == total and layout.flags.c_contiguous:
        return _reshape(_flatten_if_reordered(value, whole), shape)
    offset = offset_of(layout)
    blocks = _find_blocks(shape, layout.strides, offset, total)
    if blocks is None:
        return flatten(value, whole)[_positions(layout, offset)]
    padded = blocks.padded > total
    block = _pad(flatten(value, whole), blocks.padded) if padded else _flatten_if_reordered(value, whole)
    block = _reshape(block, blocks.dims)
    if blocks.sizes != blocks.dims:
        block = jax.lax.slice(block, blocks.starts, [a + n for a, n in zip(blocks.starts, blocks.sizes, strict=True)])
    block = _reshape(block, blocks.sizes[: len(blocks.order)])
    if len(blocks.order) > 1:
        block = jax.lax.transpose(block, [blocks.order.index(i) for i in sorted(blocks.order)])
    block = _reshape(block, tuple(n if i in blocks.order else 1 for i, n in enumerate(shape)))
    return block if block.shape == shape else jnp.broadcast_to(block, shape)


def write(value: jax.Array, layout: Layout, whole: Layout, new: jax.Array) -> jax.Array:
    """Return a storage's array with new values for the elements of a layout.

    Args:
        value: the array.
        layout: the layout of the view that is written to.
        whole: the layout of the storage.
        new: an array of the layout's shape and the storage's dtype.

    Raises:
        RuntimeError: several elements of the view have the same position in memory (PyTorch's message).
    """
    if not layout.size:
        return value
    if any(n > 1 and not s for n, s in zip(layout.shape, layout.strides, strict=True)):
        raise RuntimeError(
            "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
            "Please clone() the tensor before performing the operation."
        )
    if are_same(layout, whole):
        return new.reshape(value.shape)
    flat = flatten(value, whole)
    if layout.size == flat.size and layout.flags.c_contiguous:
        return unflatten(new.reshape(-1), whole)
    offset = offset_of(layout)
    blocks = _find_blocks(layout.shape, layout.strides, offset, flat.size)
    if blocks is None:
        if _overlaps(layout):
            raise NotSupported("a write to a view whose elements overlap in memory", "write to the elements one by one")
        return unflatten(flat.at[_positions(layout, offset)].set(new), whole)
    ordered = jnp.transpose(
        new.reshape([n for i, n in enumerate(new.shape) if i in blocks.order]), _ranks(blocks.order)
    )
    whole_array = _pad(flat, blocks.padded).reshape(blocks.dims)
    written = jax.lax.dynamic_update_slice(whole_array, ordered.reshape(blocks.sizes), blocks.starts)
    return unflatten(written.reshape(-1)[: flat.size], whole)


def _ranks(order: Sequence[int]) -> list[int]:
    """Return for each axis of the block its rank among the layout's axes of more than one element."""
    long = sorted(order)
    return [long.index(i) for i in order]


def size_of(shape: Sequence[int]) -> int:
    """Return the number of elements."""
    return math.prod(shape)


class Size(tuple[int, ...]):
    """Shape of a tensor, a tuple of integers."""

    __slots__ = ()

    def numel(self) -> int:
        """Return the number of elements."""
        return size_of(self)

    def __repr__(self) -> str:
        return f"torch.Size({list(self)})"

    def __getitem__(self, index: Any) -> Any:
        found = super().__getitem__(index)
        return Size(found) if isinstance(index, slice) else found

    def __add__(self, other: Any) -> Any:
        return Size(super().__add__(tuple(other)))


def check_expandable(own: Sequence[int], sizes: Sequence[int]) -> None:
    """Raise PyTorch's error where a shape does not expand to sizes.

    Raises:
        RuntimeError: the shape does not expand to the sizes.
    """
    added = len(sizes) - len(own)
    if added < 0:
        what = f"the number of sizes provided ({len(sizes)}) must be greater or equal to the number of dimensions"
        raise RuntimeError(f"expand(torch.Tensor{{{[*own]}}}, size={[*sizes]}): {what} in the tensor ({len(own)})")
    for i, (n, size) in enumerate(zip(own, sizes[added:], strict=True), added):
        if n not in {1, size} and size != -1:
            what = f"The expanded size of the tensor ({size}) must match the existing size ({n})"
            shapes = f"Target sizes: {[*sizes]}.  Tensor sizes: {[*own]}"
            raise RuntimeError(f"{what} at non-singleton dimension {i}.  {shapes}")


def describe_mismatch(*shapes: Sequence[int]) -> str:
    """Return PyTorch's message for shapes that do not broadcast; an empty string if they do."""
    rank = max(map(len, shapes))
    for i in reversed(range(-rank, 0)):
        sizes = [s[i] for s in shapes if len(s) >= -i]
        known = [n for n in sizes if n != 1]
        wrong = next((n for n in known if n != known[0]), None)
        if wrong is not None:
            what = f"The size of tensor a ({known[0]}) must match the size of tensor b ({wrong})"
            return f"{what} at non-singleton dimension {rank + i}"
    return ""
