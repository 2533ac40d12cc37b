# What ported code carries has no types.
# mypy: ignore-errors
"""Functions that ported code carries where PyTorch writes to memory through views and masks."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np


def _index(index):
    """An index as PyTorch takes it: a list or a range is an array, of booleans one that jit has to know."""
    if not isinstance(index, (list, range)):
        return index
    masked = len(index) > 0 and all(isinstance(i, bool) for i in index)
    return np.asarray(index) if masked else jnp.asarray(index, int)


def _write(x, view, value):
    """A copy of x of which the entries that `view(x)` shows are `value`."""
    places = view(jnp.arange(x.size).reshape(x.shape))
    value = jnp.broadcast_to(value, places.shape).astype(x.dtype)
    return x.ravel().at[places].set(value).reshape(x.shape)


def _mask(mask, x):
    """A mask over the first axes of x, with further axes so that it broadcasts against x."""
    if mask.dtype != bool:
        raise TypeError(f"this was ported as an index by a boolean mask, and is one of {mask.dtype}")
    return mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim))


def _selected(x, index):
    """A mask over x: the entries at an index that has one boolean mask among slices and numbers."""
    at = next((i for i, e in enumerate(index) if hasattr(e, "dtype") and e.dtype == bool), None)
    if at is None:
        raise TypeError("this was ported as an index with a boolean mask in it, and has none")
    ahead, mask, behind = index[:at], index[at], index[at + 1 :]
    whole = (*ahead, *[slice(None)] * mask.ndim, *behind)
    axes = sum(isinstance(e, slice) for e in (behind if Ellipsis in ahead else ahead))
    axes = axes if Ellipsis in ahead else x[whole].ndim - mask.ndim - axes
    return jnp.zeros(x.shape, bool).at[whole].set(mask.reshape(mask.shape + (1,) * axes))


def _set(x, index, value):
    """A copy of x with `value` at an index: a mask, for whose entries there is one value or one each, or any other."""
    if not (hasattr(index, "dtype") and index.dtype == bool):
        return x.at[_index(index)].set(value)
    if jnp.ndim(value) > x.ndim - index.ndim:
        order = jnp.cumsum(index.ravel()) - 1
        value = value[jnp.clip(order, 0, len(value) - 1)].reshape(index.shape + value.shape[1:])
    return jnp.where(_mask(index, x), value, x).astype(x.dtype)


def _update(x, index, new):
    """A copy of x with the entries of `new`, an array with the same axes, at an index: a boolean mask or any other."""
    if hasattr(index, "dtype") and index.dtype == bool:
        return jnp.where(_mask(index, x), new, x).astype(x.dtype)
    index = _index(index)
    return x.at[index].set(new[index])
