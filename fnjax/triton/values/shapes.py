"""Operations that change the shape of blocks or the order of their elements."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any, SupportsIndex, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from fnjax.triton.values import arithmetic as values
from fnjax.triton.values import types
from fnjax.triton.values.affine import Affine, Shape, leading
from fnjax.triton.values.arithmetic import as_tensor
from fnjax.triton.values.pointers import AnyPointer
from fnjax.triton.values.tensor import KNOWN_LIMIT, Operand, Tensor, aligned

Sizes = SupportsIndex | Sequence[SupportsIndex] | types.constexpr  # a size, or all of them
Function = TypeVar("Function", bound=Callable[..., Any])


def shape_of(given: Sequence[Sizes]) -> Shape:
    """Return a shape as a tuple of integers, given as one argument (a list) or as several."""
    sizes: Sequence[Any] = [getattr(g, "value", g) for g in given]
    if len(sizes) == 1 and isinstance(sizes[0], list | tuple):
        sizes = sizes[0]
    return tuple(operator.index(getattr(n, "value", n)) for n in sizes)


def axis_of(given: SupportsIndex, rank: int) -> int:
    """Return the index of an axis of a block with `rank` axes; negative ones count from the end.

    Raises:
        ValueError: there is no such axis.
    """
    if not -rank <= (axis := operator.index(given)) < rank:
        raise ValueError(f"there is no axis {axis} in a block of {rank} axes")
    return axis % rank


def of_pointers(function: Function) -> Function:
    """Return a function of blocks as one that takes blocks of pointers, too: it applies to their offsets and masks."""

    @functools.wraps(function)
    def operate(input: Any, *args: Any, **named: Any) -> Any:
        if isinstance(input, AnyPointer):
            return input.map(lambda tensor: function(tensor, *args, **named))
        return function(input, *args, **named)

    return operate  # type: ignore[return-value]  # it has the same signature


@of_pointers
def reshape(input: Operand, *shape: Sizes, can_reorder: bool = False) -> Tensor:
    """Return the elements, in row-major order, in another shape.

    Raises:
        ValueError: the shapes differ in their number of elements.
    """
    sizes, tensor = shape_of(shape), as_tensor(input)
    if int(np.prod(sizes)) != tensor.numel:
        raise ValueError(f"a block of shape {tensor.shape} cannot take the shape {sizes}")
    if [n for n in sizes if n > 1] == [n for n in tensor.shape if n > 1]:

        def moved(affine: Affine) -> Affine:
            strides = iter([s for s, n in zip(affine.strides, affine.shape, strict=True) if n > 1])
            return affine.reshaped(sizes, [next(strides) if n > 1 else 0 for n in sizes])

        return tensor.rearranged(
            sizes,
            moved,
            lambda data: jnp.broadcast_to(data, data.shape[: leading()] + tensor.shape).reshape(
                data.shape[: leading()] + sizes
            ),
        )
    if tensor.known and tensor.dtype.kind in "iu" and tensor.numel <= KNOWN_LIMIT:
        data = np.broadcast_to(aligned(tensor.data, tensor.ndim), tensor.data.shape[: leading()] + tensor.shape)
        return values.of_data(data.reshape(data.shape[: leading()] + sizes), tensor.dtype, sizes)
    full = tensor.filled()
    return Tensor(full.reshape(full.shape[: leading()] + sizes), tensor.dtype, sizes)


view = reshape


def ravel(x: Tensor, can_reorder: bool = False) -> Tensor:
    """Return all elements as a block of one axis."""
    return reshape(x, (x.numel,))


def filled_alike(*tensors: Tensor) -> list[jax.Array]:
    """Return the arrays of tensors with the block's axes in full size, and leading axes broadcast to each other."""
    arrays = [t.filled() for t in tensors]
    lead = np.broadcast_shapes(*(a.shape[: leading()] for a in arrays))
    return [jnp.broadcast_to(a, lead + t.shape) for a, t in zip(arrays, tensors, strict=True)]


@of_pointers
def trans(input: Tensor, *dims: Sizes) -> Tensor:
    """Return a block with its axes permuted; the last two are swapped if none are given."""
    if not dims:
        dims = (*range(input.ndim - 2), input.ndim - 1, input.ndim - 2)
    return permute(input, *dims)


@of_pointers
def permute(input: Tensor, *dims: Sizes) -> Tensor:
    """Return a block with its axes in the order `dims`.

    Raises:
        ValueError: `dims` is not a permutation of the axes.
    """
    order = [axis_of(d, input.ndim) for d in shape_of(dims)]
    if sorted(order) != list(range(input.ndim)):
        raise ValueError(f"{tuple(order)} is not an order of the axes of a block of shape {input.shape}")
    shape = [input.shape[d] for d in order]
    return input.rearranged(
        shape,
        lambda affine: affine.reshaped(shape, [affine.strides[d] for d in order]),
        lambda data: data.transpose([*range(leading()), *(leading() + d for d in order)]),
    )


@of_pointers
def expand_dims(input: Tensor, axis: SupportsIndex | Sequence[SupportsIndex]) -> Tensor:
    """Return a block with a new axis of size 1, or with several."""
    for given in sorted(map(operator.index, axis if isinstance(axis, list | tuple) else [axis])):
        one = axis_of(given, input.ndim + 1)
        input = input[tuple([slice(None)] * one + [None] + [slice(None)] * (input.ndim - one))]
    return input


@of_pointers
def broadcast_to(input: Operand, *shape: Sizes) -> Tensor:
    """Return a block broadcast to a shape."""
    return values.broadcast(input, shape_of(shape))


def broadcast(input: Any, other: Any) -> Any:
    """Return both blocks broadcast to their common shape."""
    input, other = (x if isinstance(x, AnyPointer) else as_tensor(x) for x in (input, other))
    shape = np.broadcast_shapes(input.shape, other.shape)
    return broadcast_to(input, shape), broadcast_to(other, shape)


def join(a: Operand, b: Operand) -> Tensor:
    """Return two blocks stacked along a new last axis."""
    x, y, kind = values.to_common_type(a, b)
    x, y = broadcast(x, y)
    return Tensor(jnp.stack(filled_alike(x, y), axis=-1), kind, (*x.shape, 2))


def split(a: Tensor) -> tuple[Tensor, ...]:
    """Return the two halves of a block along its last axis, of size 2: the inverse of `join`.

    Raises:
        ValueError: the last axis has another size.
    """
    if a.shape[-1:] != (2,):
        raise ValueError(f"tl.split takes a block whose last axis has two elements, not one of shape {a.shape}")
    data = a.filled()
    return tuple(Tensor(data[..., i], a.dtype, a.shape[:-1]) for i in range(2))


def interleave(a: Operand, b: Operand) -> Tensor:
    """Return the elements of two blocks alternately, along the last axis."""
    joined = join(a, b)
    return reshape(joined, (*joined.shape[:-2], 2 * joined.shape[-2])) if joined.ndim > 1 else joined


def cat(input: Operand, other: Operand, can_reorder: bool = False, dim: SupportsIndex = 0) -> Tensor:
    """Return two blocks concatenated along an axis."""
    dim = operator.index(dim)
    a, b, kind = values.to_common_type(input, other)
    shape = tuple(n + m if d == dim else n for d, (n, m) in enumerate(zip(a.shape, b.shape, strict=True)))
    return Tensor(jnp.concatenate(filled_alike(a, b), leading() + dim), kind, shape)


def flip(x: Tensor, dim: SupportsIndex | None = None) -> Tensor:
    """Return a block with an axis reversed, the last one by default."""
    dim = axis_of(-1 if dim is None else dim, x.ndim)
    return Tensor(jnp.flip(x.filled(), leading() + dim), x.dtype, x.shape)


def gather(src: Tensor, index: Tensor, axis: SupportsIndex) -> Tensor:
    """Return elements of `src` at the positions `index` along an axis."""
    axis = axis_of(axis, src.ndim)
    data, positions = filled_alike(src, index)
    return Tensor(jnp.take_along_axis(data, positions, leading() + axis), src.dtype, index.shape)


def histogram(input: Tensor, num_bins: SupportsIndex, mask: Operand | None = None) -> Tensor:
    """Return how often each integer from 0 to `num_bins` - 1 occurs in a block, where the mask holds."""
    num_bins = operator.index(num_bins)
    bins = input.filled()
    bins = bins if bins.dtype.itemsize >= 4 else bins.astype(jnp.int32)  # a narrow type may not hold `num_bins`
    inside = (bins >= 0) & (bins < num_bins)
    if mask is not None:
        inside = inside & values.broadcast(mask, input.shape).filled()
    bins = jnp.where(inside, bins, num_bins)
    each = bins.reshape(-1, bins.shape[-1])
    counts = jnp.zeros((len(each), num_bins), jnp.int32).at[jnp.arange(len(each))[:, None], each].add(1, mode="drop")
    return Tensor(counts.reshape(*bins.shape[:-1], num_bins), types.int32, (num_bins,))
