# What ported code carries has no types.
# mypy: ignore-errors
"""Functions that ported code carries: reading and writing at indices."""

import jax
import jax.numpy as jnp


def _grid(shape, axis, index):
    """An index for every axis: the given one along its axis, the own place along the others."""
    places = jnp.meshgrid(*(jnp.arange(n) for n in shape), indexing="ij", sparse=True)
    return tuple(index if i == axis % len(shape) else place for i, place in enumerate(places))


def _gather(x, index, axis):
    """Entries at indices along an axis; along the others the index may be smaller than the array."""
    if x.ndim == 0 or index.ndim == 0:
        return x.reshape(-1)[index.reshape(-1)].reshape(index.shape)
    return x[_grid(index.shape, axis, index)]


def _padded_embedding(indices, weight, padding_idx):
    """Rows of the weight, of which that of padding_idx takes no gradient."""
    rows = weight[indices]
    if padding_idx is None:
        return rows
    padded = indices == padding_idx % weight.shape[0]
    return jnp.where(padded[..., None], jax.lax.stop_gradient(rows), rows)


def _scatter(x, index, source, axis, how="set", include_self=True):
    """Entries written at indices along an axis; how is set, add, multiply, max, min or mean."""
    shape = x.shape
    if x.ndim == 0:
        x, index = x.reshape(1), index.reshape(-1)
    elif index.ndim == 0:
        index = index.reshape(1)
    source = jnp.asarray(source, x.dtype)
    if source.ndim == index.ndim:
        source = source[tuple(slice(n) for n in index.shape)]
    source = jnp.broadcast_to(source.reshape(index.shape) if source.size == index.size else source, index.shape)
    place = _grid(index.shape, axis, index)
    return _written(x, place, source, how, include_self).reshape(shape)


def _written(x, place, source, how, include_self):
    """Entries set at a place, or joined to what stands there (or, without that, among themselves)."""
    if how == "set":
        return x.at[place].set(source)
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


def _index_write(x, index, source, axis, how="set", include_self=True):
    """Slices written at indices along an axis; how is set, add, multiply, max, min or mean."""
    if x.ndim == 0:
        return _index_write(
            x.reshape(1), jnp.reshape(index, -1), jnp.reshape(source, -1), 0, how, include_self
        ).reshape(())
    index = jnp.reshape(index, -1)
    source = jnp.asarray(source, x.dtype)
    source = source if source.ndim == 0 else jnp.moveaxis(source, axis, 0)
    moved = _written(jnp.moveaxis(x, axis, 0), index, source, how, include_self)
    return jnp.moveaxis(moved, 0, axis)


def _masked_scatter(x, mask, source):
    """The entries of source, one after another, where the mask is true."""
    mask = jnp.broadcast_to(mask, x.shape)
    order = jnp.cumsum(mask.ravel()) - 1
    return jnp.where(mask, source.ravel()[jnp.maximum(order, 0)].reshape(x.shape), x)


def _masked_select(x, mask):
    """The entries where the mask is true, in a row."""
    x, mask = jnp.broadcast_arrays(x, mask)
    return x[mask]


def _put(x, index, source, accumulate=False):
    """Entries written at indices into the flattened array."""
    flat = x.ravel().at[index.ravel()]
    return (flat.add(source.ravel()) if accumulate else flat.set(source.ravel())).reshape(x.shape)


def _select_scatter(x, source, axis, index):
    """One slice along an axis replaced."""
    return jnp.moveaxis(jnp.moveaxis(x, axis, 0).at[index].set(source), 0, axis)


def _slice_scatter(x, source, axis=0, start=None, end=None, step=1):
    """A range of slices along an axis replaced."""
    moved = jnp.moveaxis(x, axis, 0).at[slice(start, end, step)].set(jnp.moveaxis(source, axis, 0))
    return jnp.moveaxis(moved, 0, axis)


def _diagonal_scatter(x, source, offset=0, axis1=0, axis2=1):
    """A diagonal replaced."""
    moved = jnp.moveaxis(x, (axis1, axis2), (-2, -1))
    rows = jnp.arange(source.shape[-1]) + max(-offset, 0)
    columns = jnp.arange(source.shape[-1]) + max(offset, 0)
    return jnp.moveaxis(moved.at[..., rows, columns].set(source), (-2, -1), (axis1, axis2))
