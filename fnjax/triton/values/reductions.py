"""Reductions, scans and sorts along an axis of a block; of equal elements the first one counts."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fnjax._primitives.replace_primal import replace_primal
from fnjax.triton.values import arithmetic as values
from fnjax.triton.values import types
from fnjax.triton.values.affine import Array, Shape, leading
from fnjax.triton.values.arithmetic import as_tensor
from fnjax.triton.values.shapes import axis_of, filled_alike, reshape
from fnjax.triton.values.state import current
from fnjax.triton.values.tensor import Concatenated, Operand, Tensor, aligned, is_narrowed

Axis = SupportsIndex | None  # of a reduction; None for all elements
Operands = Operand | tuple[Operand, ...]  # one block, or several of one shape
Combine = Callable[..., Any]  # a kernel
Arrays = tuple[jax.Array, ...]
LONG = 64  # extremes of so many numbers or more are taken in eight independent chains of dependent steps


def _along(input: Operand, axis: Axis, keep_dims: bool) -> tuple[Tensor, int, Shape]:
    """Return the block (raveled if `axis` is None), the axis, and the shape of the result."""
    input = as_tensor(input)
    if axis is None:
        shape = (1,) * input.ndim if keep_dims else ()
        return reshape(input, (input.numel,)), 0, shape
    axis = axis_of(axis, input.ndim)
    shape = tuple(1 if d == axis else n for d, n in enumerate(input.shape))
    return input, axis, shape if keep_dims else shape[:axis] + shape[axis + 1 :]


def _parts_along(input: Tensor, axis: Axis) -> Sequence[Tensor] | None:
    """Return the parts of a block that is divided along the axis of a reduction; None for any other block."""
    if not isinstance(input, Concatenated):
        return None
    axis = 0 if axis is None and input.ndim == 1 else axis
    return input.parts if axis is not None and axis_of(axis, input.ndim) == input.ndim + input.axis else None


def _result(data: Array, kind: types.dtype, shape: Shape) -> Tensor:
    return Tensor(data.reshape(data.shape[: leading()] + shape), kind, shape)


def _widened(input: Tensor) -> Tensor:
    """Return small integers in 32 bits, in which they are summed; masks become unsigned, as in Triton."""
    if input.dtype.is_int() and input.dtype.primitive_bitwidth < 32:
        return values.cast(input, types.int32 if input.dtype.is_int_signed() else types.uint32)
    return input


def sum(input: Operand, axis: Axis = None, keep_dims: bool = False, dtype: types.TypeLike | None = None) -> Tensor:
    """Return the sum along an axis, or of all elements; floats of 16 bits are added up in float32, and rounded once."""
    input = as_tensor(input)
    input = _widened(input) if dtype is None else values.cast(input, dtype)
    if parts := _parts_along(input, axis):
        first, second = parts
        if second.known and not second.data.any():
            return sum(first, axis, keep_dims)
        if input.dtype.primitive_bitwidth >= 32:  # a sum of fewer bits is rounded once
            return values.add(sum(first, axis, keep_dims), sum(second, axis, keep_dims))
    input, axis, shape = _along(input, axis, keep_dims)
    data, xp = (input.filled(), jnp) if (exact := _exact(input)) is None else (exact, np)
    wide = jnp.float32 if input.dtype.is_floating() and input.dtype.primitive_bitwidth < 32 else data.dtype
    return _result(xp.sum(data, leading() + axis, dtype=wide).astype(data.dtype), input.dtype, shape)


def _exact(input: Tensor) -> np.ndarray | None:
    """Return known integers of 64 bits as NumPy's where JAX has 32, with all axes of the block; else None."""
    if not (is_narrowed(input.dtype) and input.known):
        return None
    data = aligned(input.data, input.ndim)
    return np.broadcast_to(data, data.shape[: leading()] + input.shape)


def xor_sum(input: Operand, axis: Axis = None, keep_dims: bool = False) -> Tensor:
    """Return the exclusive or of the elements along an axis."""
    input, axis, shape = _along(input, axis, keep_dims)
    return _result(jnp.bitwise_xor.reduce(input.filled(), axis=leading() + axis), input.dtype, shape)


def reduce_or(input: Operand, axis: Axis, keep_dims: bool = False) -> Tensor:
    """Return the bitwise or of the elements along an axis."""
    input, axis, shape = _along(input, axis, keep_dims)
    return _result(jnp.bitwise_or.reduce(input.filled(), axis=leading() + axis), input.dtype, shape)


def _extended(input: Tensor) -> Tensor:
    """Return 8- and 16-bit numbers in 32 bits, in which extremes are found."""
    if input.dtype.primitive_bitwidth < 32:
        return values.cast(input, types.float32 if input.dtype.is_floating() else types.int32)
    return input


def _extreme(largest: bool) -> Callable[..., Any]:
    """Return `tl.max` or `tl.min`."""

    def operate(
        input: Operand,
        axis: Axis = None,
        return_indices: bool = False,
        return_indices_tie_break_left: bool = True,
        keep_dims: bool = False,
    ) -> Tensor | tuple[Tensor, Tensor]:
        input = as_tensor(input)
        input = values.without_bfloat16(input) if return_indices else _extended(input)
        if return_indices:
            where = _position(largest)(input, axis, return_indices_tie_break_left, keep_dims)
            return extreme(input, axis, keep_dims), where
        return extreme(input, axis, keep_dims)

    def extreme(input: Tensor, axis: Axis, keep_dims: bool) -> Tensor:
        parts = _parts_along(input, axis)
        if parts and parts[1].known and (parts[1].data == (-np.inf if largest else np.inf)).all():
            of_first = extreme(parts[0], axis, keep_dims)
            return values.where(values.compare("equal", of_first, of_first), of_first, -np.inf if largest else np.inf)
        input, axis, shape = _along(input, axis, keep_dims)
        data = input.filled()
        if input.dtype.kind == "f":
            found = _extreme_number(data, leading() + axis, largest)
        else:
            found = (jnp.max if largest else jnp.min)(data, leading() + axis)
        return _result(found, input.dtype, shape)

    operate.__name__ = "max" if largest else "min"
    return operate


def _extreme_number(data: jax.Array, axis: int, largest: bool) -> jax.Array:
    """Return the largest or smallest element along an axis; NaN only where there is nothing else, as in tl.maximum.

    Equal extremes share the derivative, as in JAX. XLA reads the elements once, and stores no mask of them; a reduction
    of pairs is one kernel, while one of single numbers would become several that are compiled each.
    """

    def joined(a: Any, b: Any) -> Any:
        (x, of_x), (y, of_y) = a, b
        beats = y > x if largest else y < x
        return lax.select(beats, y, x), lax.select(beats, of_y, lax.select(x == y, of_x + of_y, of_x))

    fixed = lax.stop_gradient(data)
    there = fixed == fixed  # noqa: PLR0124  NaN is unlike itself
    none = np.array(-np.inf if largest else np.inf, data.dtype), np.int32(0)
    pairs = jnp.where(there, fixed, none[0]), there.astype(jnp.int32)
    if data.shape[axis] >= LONG and data.shape[axis] % 8 == 0:
        shape = (*data.shape[:axis], 8, data.shape[axis] // 8, *data.shape[axis + 1 :])
        pairs = lax.reduce(tuple(x.reshape(shape) for x in pairs), none, joined, (axis,))
    found, count = lax.reduce(pairs, none, joined, (axis,))
    shared = jnp.where(fixed == jnp.expand_dims(found, axis), data, 0).sum(axis) / jnp.maximum(count, 1)
    number: jax.Array = replace_primal(shared, jnp.where(count > 0, found, jnp.nan))
    return number


def _position(largest: bool) -> Callable[..., Tensor]:
    """Return `tl.argmax` or `tl.argmin`."""

    def operate(input: Operand, axis: Axis, tie_break_left: bool = True, keep_dims: bool = False) -> Tensor:
        input, axis, shape = _along(input, axis, keep_dims)
        data = input.filled()
        found = (jnp.argmax if largest else jnp.argmin)(data, leading() + axis)
        return _result(found.astype(jnp.int32), types.int32, shape)

    operate.__name__ = "argmax" if largest else "argmin"
    return operate


max, min = _extreme(True), _extreme(False)
argmax, argmin = _position(True), _position(False)


def cumsum(
    input: Operand, axis: SupportsIndex = 0, reverse: bool = False, dtype: types.TypeLike | None = None
) -> Tensor:
    """Return the cumulative sum along an axis, from its end if `reverse`.

    Raises:
        TypeError: the elements are booleans.
    """
    input = values.without_bfloat16(input)
    return _scanned(lax.cumsum, _widened(input) if dtype is None else values.cast(input, dtype), axis, reverse)


def cumprod(input: Operand, axis: SupportsIndex = 0, reverse: bool = False) -> Tensor:
    """Return the cumulative product along an axis, from its end if `reverse`, in the type of the elements.

    Raises:
        TypeError: the elements are booleans.
    """
    return _scanned(lax.cumprod, values.without_bfloat16(input), axis, reverse)


def _scanned(function: Callable[..., jax.Array], input: Tensor, axis: SupportsIndex, reverse: bool) -> Tensor:
    """Return a cumulative sum or product along an axis; TypeError for booleans."""
    if input.dtype.is_bool():
        raise TypeError(f"tl.{function.__name__} of booleans: convert them with .to(tl.int32)")
    at = leading() + axis_of(axis, input.ndim)
    if (exact := _exact(input)) is None:
        return Tensor(function(input.filled(), at, reverse=bool(reverse)), input.dtype, input.shape)
    order = slice(None, None, -1 if reverse else 1)
    found = getattr(np, function.__name__)(exact[(slice(None),) * at + (order,)], at)[(slice(None),) * at + (order,)]
    return Tensor(found, input.dtype, input.shape)


def _combined(combine_fn: Combine, kinds: Sequence[types.dtype]) -> Callable[[Arrays, Arrays], Arrays]:
    """Return a kernel's combining function as one on tuples of arrays."""

    def combine(a: Arrays, b: Arrays) -> Arrays:
        given = [Tensor(x, k, x.shape[leading() :]) for part in (a, b) for x, k in zip(part, kinds, strict=True)]
        with current().by_element():
            found = combine_fn(*given)
        found = found if isinstance(found, tuple) else (found,)
        return tuple(
            jnp.broadcast_to(values.cast(f, k).array(), x.shape) for f, k, x in zip(found, kinds, a, strict=True)
        )

    return combine


def _together(input: Operands) -> tuple[list[jax.Array], list[types.dtype], Shape, bool]:
    """Return the arrays of one block or several, broadcast to each other; their types; their shape; True if several."""
    several = isinstance(input, tuple)
    parts = [as_tensor(x) for x in (input if isinstance(input, tuple) else (input,))]
    shape = np.broadcast_shapes(*(p.shape for p in parts))
    parts = [values.broadcast(p, shape) for p in parts]
    return filled_alike(*parts), [p.dtype for p in parts], shape, several


def reduce(input: Operands, axis: Axis, combine_fn: Combine, keep_dims: bool = False) -> Tensor | tuple[Tensor, ...]:
    """Return the reduction along an axis by `combine_fn`: neighbours are combined, then their results, and so on."""
    arrays, kinds, shape, several = _together(input)
    if axis is None:
        arrays = [a.reshape((*a.shape[: leading()], -1)) for a in arrays]
        out, axis = ((1,) * len(shape) if keep_dims else ()), 0
    else:
        axis = axis_of(axis, len(shape))
        out = shape[:axis] + ((1,) if keep_dims else ()) + shape[axis + 1 :]
    combine, at = _combined(combine_fn, kinds), leading() + axis
    while arrays[0].shape[at] > 1:
        half = arrays[0].shape[at] // 2
        a = [lax.slice_in_dim(x, 0, 2 * half, 2, at) for x in arrays]
        b = [lax.slice_in_dim(x, 1, 2 * half, 2, at) for x in arrays]
        joined: Sequence[jax.Array] = combine(tuple(a), tuple(b))
        if arrays[0].shape[at] % 2:
            joined = [
                jnp.concatenate([j, lax.slice_in_dim(x, 2 * half, None, axis=at)], at)
                for j, x in zip(joined, arrays, strict=True)
            ]
        arrays = list(joined)
    found = tuple(
        _result(x.reshape(x.shape[:at] + x.shape[at + 1 :]), k, tuple(out)) for x, k in zip(arrays, kinds, strict=True)
    )
    return found if several else found[0]


def associative_scan(
    input: Operands, axis: SupportsIndex, combine_fn: Combine, reverse: bool = False
) -> Tensor | tuple[Tensor, ...]:
    """Return the results of combining all prefixes along an axis, or all suffixes if `reverse`."""
    arrays, kinds, shape, several = _together(input)
    at = leading() + axis_of(axis, len(shape))
    combine = _combined(combine_fn, kinds)
    if reverse:
        arrays = [jnp.flip(a, at) for a in arrays]
    scanned: Sequence[jax.Array] = lax.associative_scan(combine, tuple(arrays), axis=at)
    if reverse:
        scanned = [jnp.flip(a, at) for a in scanned]
    found = tuple(Tensor(x, k, shape) for x, k in zip(scanned, kinds, strict=True))
    return found if several else found[0]


def sort(x: Tensor, dim: SupportsIndex | None = None, descending: bool = False) -> Tensor:
    """Return the elements in order along an axis, the last one by default."""
    dim = axis_of(-1 if dim is None else dim, x.ndim)
    return Tensor(jnp.sort(x.filled(), leading() + dim, descending=bool(descending)), x.dtype, x.shape)


def topk(x: Tensor, k: SupportsIndex, dim: SupportsIndex | None = None) -> Tensor:
    """Return the k largest elements along the last axis, largest first."""
    k = operator.index(k)
    if k < x.shape[-1]:
        x = _extended(x)
    data = lax.slice_in_dim(sort(x, dim, True).filled(), 0, k, axis=leading() + x.ndim - 1)
    return Tensor(data, x.dtype, (*x.shape[:-1], k))
