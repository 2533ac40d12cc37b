# Ported code has no types.
# mypy: ignore-errors
"""Functions that expressions of the table call, and that ports copy: reading and writing at indices."""

import jax
import jax.numpy as jnp

from fnjax._torch_ops.jax_functions.rounding import _quotient


def _grid(shape, axis, index):
    """Return an index for every axis: the given one along its axis, the identity along the others."""
    places = jnp.meshgrid(*(jnp.arange(n) for n in shape), indexing="ij", sparse=True)
    return tuple(index if i == axis % len(shape) else place for i, place in enumerate(places))


def _gather(x, index, axis):
    """Return elements at indices along an axis; along the others the index may be smaller than the array."""
    if x.ndim == 0 or index.ndim == 0:
        return x.reshape(-1)[index.reshape(-1)].reshape(index.shape)
    return x[_grid(index.shape, axis, index)]


def _take_along(x, indices, axis=None):
    """Return the elements at indices along an axis, or of the flattened array."""
    if axis is None:
        x, indices, axis = x.ravel(), indices.ravel(), 0
    return jnp.take_along_axis(x, indices, axis=axis)


def _padded_embedding(indices, weight, padding_idx):
    """Return rows of the weight; that of padding_idx gets no gradient."""
    rows = weight[indices]
    if padding_idx is None:
        return rows
    padded = indices == padding_idx % weight.shape[0]
    return jnp.where(padded[..., None], jax.lax.stop_gradient(rows), rows)


def _embedding_bag(indices, weight, offsets=None, scale=None, mode="mean", include_last=False, padding_idx=None):
    """Return sums, means or maxima of rows: of each row of indices, or of the indices from one offset to the next."""
    bags = indices.shape[0] if indices.ndim == 2 else offsets.shape[0] - bool(include_last)
    if indices.ndim == 2:
        bag = jnp.repeat(jnp.arange(bags), indices.shape[1])
    else:
        bag = jnp.searchsorted(offsets, jnp.arange(indices.shape[0]), side="right") - 1
    indices = indices.reshape(-1)
    rows = weight[indices]
    rows = rows if scale is None else rows * scale.reshape(-1, 1)
    kept = (bag >= 0) & (bag < bags)
    if padding_idx is not None:
        kept &= indices != padding_idx % weight.shape[0]
    count = jnp.zeros(bags, weight.dtype).at[bag].add(kept, mode="drop")[:, None]
    if mode == "max":
        low = jnp.full((bags, weight.shape[1]), -jnp.inf, weight.dtype)
        found = low.at[bag].max(jnp.where(kept[:, None], rows, -jnp.inf), mode="drop")
        return jnp.where(count > 0, found, 0)
    total = jnp.zeros((bags, weight.shape[1]), rows.dtype).at[bag].add(jnp.where(kept[:, None], rows, 0), mode="drop")
    return total if mode == "sum" else _quotient(total, jnp.maximum(count, 1))


def _cat(arrays, axis=0):
    """Concatenate arrays, without empty vectors, which PyTorch leaves out."""
    some = [a for a in arrays if a.shape != (0,)] or arrays
    return jnp.concatenate(some, axis=axis).astype(jnp.result_type(*arrays))


def _trimmed(value, target):
    """Return a value without the leading axes of size 1 that the target does not have."""
    return value.reshape(value.shape[max(value.ndim - target.ndim, 0) :])


def _scatter(x, index, source, axis, how="set"):
    """Set elements, or one number, at indices along an axis; or combine them with x: add, multiply, max, min."""
    index = jnp.atleast_1d(index)
    source = jnp.asarray(source, x.dtype)
    source = source[tuple(slice(n) for n in index.shape[: source.ndim])]
    place = _grid(index.shape, axis, index)
    return getattr(jnp.atleast_1d(x).at[place], how)(source).reshape(x.shape)


def _scatter_reduce(x, index, source, axis, how, include_self=True):
    """Combine elements with those at indices along an axis; how is add, multiply, max, min or mean."""
    index = jnp.atleast_1d(index)
    source = jnp.atleast_1d(source)[tuple(slice(n) for n in index.shape)]
    place = _grid(index.shape, axis, index)
    return _joined(jnp.atleast_1d(x), place, source, how, include_self).reshape(x.shape)


def _joined(x, place, source, how, include_self):
    """Combine elements with those of x at an index or, without these, among themselves."""
    if not include_self:
        limits = jnp.finfo(x.dtype) if jnp.issubdtype(x.dtype, jnp.inexact) else jnp.iinfo(x.dtype)
        low, high = (-jnp.inf, jnp.inf) if jnp.issubdtype(x.dtype, jnp.inexact) else (limits.min, limits.max)
        x = x.at[place].set({"multiply": 1, "max": low, "min": high}.get(how, 0))
    if how != "mean":
        return getattr(x.at[place], how)(source)
    count = jnp.full(x.shape, int(include_self)).at[place].add(1)
    total = x.at[place].add(source)
    count = jnp.maximum(count, 1)
    return total // count if jnp.issubdtype(x.dtype, jnp.integer) else total / count


def _index_write(x, index, source, axis, how="set"):
    """Set slices, or one number, at indices along an axis; or combine them with x: add, multiply, max, min."""
    source, moved = jnp.asarray(source, x.dtype), jnp.atleast_1d(x)
    if axis == 0:
        return getattr(moved.at[jnp.ravel(index)], how)(source).reshape(x.shape)
    source = jnp.moveaxis(source, axis, 0) if source.ndim else source
    moved = jnp.moveaxis(moved, axis, 0).at[jnp.ravel(index)]
    return jnp.moveaxis(getattr(moved, how)(source), 0, axis).reshape(x.shape)


def _index_reduce(x, index, source, axis, how, include_self=True):
    """Combine slices with those at indices along an axis; how is multiply, max, min or mean."""
    moved, source = (jnp.moveaxis(jnp.atleast_1d(a), axis, 0) for a in (x, source))
    moved = _joined(moved, jnp.ravel(index), source, how, include_self)
    return jnp.moveaxis(moved, 0, axis).reshape(x.shape)


def _scatter_joined(x, index, source, axis, how, include_self=True):
    """Combine elements with those at indices along an axis: multiply, max or min."""
    index = jnp.atleast_1d(index)
    source = jnp.atleast_1d(source)[tuple(slice(n) for n in index.shape)]
    joined = _accumulated(jnp.atleast_1d(x), _grid(index.shape, axis, index), source, how, include_self)
    return joined.reshape(x.shape)


def _index_joined(x, index, source, axis, how, include_self=True):
    """Combine slices with those at indices along an axis: multiply, max or min."""
    moved, source = (jnp.moveaxis(jnp.atleast_1d(a), axis, 0) for a in (x, source))
    return jnp.moveaxis(_accumulated(moved, jnp.ravel(index), source, how, include_self), 0, axis).reshape(x.shape)


def _accumulated(x, place, source, how, include_self):
    """Combine elements with those of x at an index, or among themselves; equal extremes share the derivative.

    PyTorch counts what stands there among them, joined or not.
    """
    start = x if include_self else x.at[place].set({"multiply": 1, "max": -jnp.inf, "min": jnp.inf}[how])
    if how == "multiply":
        return start * _products(x, place, source)
    best = jax.lax.stop_gradient(getattr(start.at[place], how)(source))
    theirs = source == best[place]
    count = (x == best).astype(x.dtype).at[place].add(theirs)

    def nothing(a, taken):
        return jnp.where(taken & jnp.isfinite(a), a - jax.lax.stop_gradient(a), 0)

    return best + nothing(start, start == best).at[place].add(nothing(source, theirs)) / jnp.maximum(count, 1)


def _products(x, place, source):
    """Return the products of the values for each element of x, by sorted indices: `.at[i].multiply` has no derivative."""
    if not source.size:
        return jnp.ones_like(x)
    at = jnp.arange(x.size).reshape(x.shape)[place].ravel()
    order = jnp.argsort(at)
    at, entries = at[order], source.ravel()[order]
    starts = jnp.append(True, at[1:] != at[:-1])

    def join(before, here):
        return before[0] | here[0], jnp.where(here[0], 1, before[1]) * here[1]

    _, products = jax.lax.associative_scan(join, (starts, entries))
    ends = jnp.where(jnp.append(starts[1:], True), at, x.size)
    return jnp.ones(x.size, x.dtype).at[ends].set(products, mode="drop").reshape(x.shape)


def _masked_scatter(x, mask, source):
    """Return x with the elements of source, one after another, where the mask is true."""
    x, mask = jnp.broadcast_arrays(x, mask)
    if not source.size:
        return x
    order = jnp.cumsum(mask.ravel()) - 1
    return jnp.where(mask, source.ravel()[jnp.maximum(order, 0)].reshape(x.shape), x)


def _masked_select(x, mask):
    """Return the elements where the mask is true, in one axis."""
    x, mask = jnp.broadcast_arrays(x, mask)
    return x[mask]


def _put(x, index, source, accumulate=False):
    """Write elements at indices into the flattened array."""
    flat = x.ravel().at[index.ravel()]
    return (flat.add(source.ravel()) if accumulate else flat.set(source.ravel())).reshape(x.shape)


def _select_scatter(x, source, axis, index):
    """Return x with one slice along an axis replaced."""
    return jnp.moveaxis(jnp.moveaxis(x, axis, 0).at[index].set(source), 0, axis)


def _slice_scatter(x, source, axis=0, start=None, end=None, step=1):
    """Return x with a range of slices along an axis replaced."""
    moved = jnp.moveaxis(x, axis, 0).at[slice(start, end, step)].set(jnp.moveaxis(source, axis, 0))
    return jnp.moveaxis(moved, 0, axis)


def _diagonal_scatter(x, source, offset=0, axis1=0, axis2=1):
    """Return x with a diagonal replaced."""
    moved = jnp.moveaxis(x, (axis1, axis2), (-2, -1))
    rows = jnp.arange(source.shape[-1]) + max(-offset, 0)
    columns = jnp.arange(source.shape[-1]) + max(offset, 0)
    return jnp.moveaxis(moved.at[..., rows, columns].set(source), (-2, -1), (axis1, axis2))


def _associative_scan(function, xs, axis, reverse=False):
    """Apply jax.lax.associative_scan, which takes no negative axis in reverse."""
    axis = axis % jax.tree.leaves(xs)[0].ndim
    return jax.lax.associative_scan(function, xs, reverse=reverse, axis=axis)


def _unique_consecutive(x, return_inverse=False, return_counts=False, axis=None):
    """Return the first of each run of equal elements, or slices; the run of each, and the lengths of the runs."""
    rows = x.reshape(-1) if axis is None else jnp.moveaxis(x, axis, 0)
    count = rows.shape[0]
    changes = (rows[1:] != rows[:-1]).any(tuple(range(1, rows.ndim)))
    first = jnp.concatenate([jnp.ones(min(count, 1), bool), changes])
    at = jnp.flatnonzero(first)
    found = [rows[at] if axis is None else jnp.moveaxis(rows[at], 0, axis)]
    if return_inverse:
        found.append((jnp.cumsum(first) - 1).reshape(x.shape if axis is None else count))
    if return_counts:
        found.append(jnp.diff(at, append=count))
    return found[0] if len(found) == 1 else tuple(found)
