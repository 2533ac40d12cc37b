"""Blocks in another shape or order."""

import operator

import jax.numpy as jnp
import numpy as np

from fnjax.triton import _types as types
from fnjax.triton import _values as values
from fnjax.triton._forms import LEAD
from fnjax.triton._tensor import Tensor
from fnjax.triton._values import as_tensor


def shape_of(given):
    """A shape given as one argument or as several."""
    given = [getattr(g, "value", g) for g in given]
    if len(given) == 1 and isinstance(given[0], list | tuple):
        given = given[0]
    return tuple(operator.index(getattr(n, "value", n)) for n in given)


def axis_of(given, rank):
    """Return an axis, counted from the end where it is negative, of a block of so many axes."""
    return operator.index(given) % rank


def reshape(input, *shape, can_reorder=False):
    """The same numbers, row by row, in another shape."""
    shape = shape_of(shape)
    input = as_tensor(input)
    if int(np.prod(shape)) != input.numel:
        raise ValueError(f"a block of shape {input.shape} cannot take the shape {shape}")
    if [n for n in shape if n > 1] == [n for n in input.shape if n > 1]:

        def moved(form):
            strides = iter([s for s, n in zip(form.strides, form.shape, strict=True) if n > 1])
            return form.reshaped(shape, [next(strides) if n > 1 else 0 for n in shape])

        return input.rearranged(
            shape,
            moved,
            lambda data: jnp.broadcast_to(data, data.shape[:LEAD] + input.shape).reshape(data.shape[:LEAD] + shape),
        )
    if input.known and input.dtype.kind in "iu" and input.numel <= values.KNOWN_LIMIT:
        data = np.broadcast_to(values.aligned(input.data, input.ndim), input.data.shape[:LEAD] + input.shape)
        return values.of_data(data.reshape(data.shape[:LEAD] + shape), input.dtype, shape)
    data = filled(input)
    return Tensor(data.reshape(data.shape[:LEAD] + shape), input.dtype, shape)


view = reshape


def ravel(x, can_reorder=False):
    """All elements in one row."""
    return reshape(x, (x.numel,))


def filled(input):
    """The array with all axes of the block in full size."""
    data = values.aligned(input.array(), input.ndim)
    return jnp.broadcast_to(data, data.shape[:LEAD] + input.shape)


def trans(input, *dims):
    """Axes in another order, the last two changed round if none is named."""
    if not dims:
        dims = (*range(input.ndim - 2), input.ndim - 1, input.ndim - 2)
    return permute(input, *dims)


def permute(input, *dims):
    """Axes in another order."""
    dims = [axis_of(d, input.ndim) for d in shape_of(dims)]
    if sorted(dims) != list(range(input.ndim)):
        raise ValueError(f"{tuple(dims)} is no order of the axes of a block of shape {input.shape}")
    shape = [input.shape[d] for d in dims]
    order = [*range(LEAD), *(LEAD + d for d in dims)]
    return input.rearranged(
        shape, lambda form: form.reshaped(shape, [form.strides[d] for d in dims]), lambda data: data.transpose(order)
    )


def expand_dims(input, axis):
    """A new axis of size 1, or several."""
    for given in sorted(map(operator.index, axis if isinstance(axis, list | tuple) else [axis])):
        one = axis_of(given, input.ndim + 1)
        input = input[tuple([slice(None)] * one + [None] + [slice(None)] * (input.ndim - one))]
    return input


def broadcast_to(input, *shape):
    """A block in a larger shape."""
    return values.broadcast(input, shape_of(shape))


def broadcast(input, other):
    """Two blocks in the shape in which they meet."""
    input, other = as_tensor(input), as_tensor(other)
    shape = np.broadcast_shapes(input.shape, other.shape)
    return values.broadcast(input, shape), values.broadcast(other, shape)


def join(a, b):
    """Two blocks side by side along a new last axis."""
    a, b, kind = values.meet(a, b)
    a, b = broadcast(a, b)
    x, y = filled(a), filled(b)
    lead = np.broadcast_shapes(x.shape[:LEAD], y.shape[:LEAD])
    data = jnp.stack([jnp.broadcast_to(x, lead + a.shape), jnp.broadcast_to(y, lead + a.shape)], axis=-1)
    return Tensor(data, kind, (*a.shape, 2))


def split(a):
    """The inverse of join."""
    if a.shape[-1:] != (2,):
        raise ValueError(f"tl.split takes a block whose last axis has two elements, not one of shape {a.shape}")
    data = filled(a)
    return tuple(Tensor(data[..., i], a.dtype, a.shape[:-1]) for i in range(2))


def interleave(a, b):
    """Elements of two blocks by turns, along the last axis."""
    both = join(a, b)
    return reshape(both, (*both.shape[:-2], 2 * both.shape[-2])) if both.ndim > 1 else both


def cat(input, other, can_reorder=False, dim=0):
    """One block behind the other."""
    dim = operator.index(dim)
    a, b, kind = values.meet(input, other)
    x, y = filled(a), filled(b)
    lead = np.broadcast_shapes(x.shape[:LEAD], y.shape[:LEAD])
    x, y = jnp.broadcast_to(x, lead + a.shape), jnp.broadcast_to(y, lead + b.shape)
    shape = [n + m if d == dim else n for d, (n, m) in enumerate(zip(a.shape, b.shape, strict=True))]
    return Tensor(jnp.concatenate([x, y], LEAD + dim), kind, shape)


def flip(x, dim=None):
    """Elements backwards along an axis."""
    dim = axis_of(-1 if dim is None else dim, x.ndim)
    return Tensor(jnp.flip(filled(x), LEAD + dim), x.dtype, x.shape)


def gather(src, index, axis):
    """Elements of a block by their index along an axis."""
    axis = axis_of(axis, src.ndim)
    x, i = filled(src), filled(index)
    lead = np.broadcast_shapes(x.shape[:LEAD], i.shape[:LEAD])
    x, i = jnp.broadcast_to(x, lead + src.shape), jnp.broadcast_to(i, lead + index.shape)
    return Tensor(jnp.take_along_axis(x, i, LEAD + axis), src.dtype, index.shape)


def histogram(input, num_bins, mask=None):
    """How often each of the numbers 0 to num_bins - 1 is there."""
    num_bins = operator.index(num_bins)
    bins = jnp.arange(num_bins)
    hits = filled(input)[..., None] == bins
    if mask is not None:
        hits = hits & filled(values.broadcast(mask, input.shape))[..., None]
    return Tensor(hits.sum(LEAD, dtype=jnp.int32), types.int32, (num_bins,))
