# Ported code has no types.
# mypy: ignore-errors
"""Functions that ports copy where PyTorch writes to memory through views and masks."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np


def _index(index):
    """Convert an index as PyTorch does: a list or a range is an array, one of booleans must be known under jit."""
    if not isinstance(index, (list, range)):
        return index
    if any(isinstance(i, (jax.Array, slice, list, tuple, type(None))) for i in index):  # one index for each axis
        return tuple(map(_index, index))
    masked = len(index) > 0 and all(isinstance(i, bool) for i in index)
    return np.asarray(index) if masked else jnp.asarray(index, int)


def _write(x, view, value):
    """Return a copy of x in which the elements that `view(x)` shows are `value`."""
    places = view(jnp.arange(x.size).reshape(x.shape))
    value = jnp.broadcast_to(value, places.shape).astype(x.dtype)
    return x.ravel().at[places].set(value).reshape(x.shape)


def _mask(mask, x):
    """Return a mask over the first axes of x with further axes, so that it broadcasts against x."""
    if mask.dtype != bool:
        raise TypeError(f"this was ported as an index by a boolean mask, and is one of {mask.dtype}")
    return mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim))


def _spread(values, mask, x=None):
    """Expand values for the elements of x that a mask selects, one each or one for all, to the shape of x."""
    if jnp.ndim(values) <= (mask if x is None else x).ndim - mask.ndim:
        return values
    if not len(values):  # none is selected, and one may be a divisor
        return jnp.ones((), values.dtype)
    order = jnp.cumsum(mask.ravel()) - 1
    return values[jnp.clip(order, 0, len(values) - 1)].reshape(mask.shape + values.shape[1:])


def _set(x, index, value):
    """Return a copy of x with `value` at an index: a mask, with one value for all or one each, or any other."""
    if not (hasattr(index, "dtype") and index.dtype == bool):
        return x.at[_index(index)].set(value)
    return jnp.where(_mask(index, x), _spread(value, index, x), x).astype(x.dtype)


def _fill(x, index, number):
    """Return a copy of x with one number at an index: a boolean mask or any other."""
    if not (hasattr(index, "dtype") and index.dtype == bool):
        return x.at[_index(index)].set(number)
    return jnp.where(index.reshape(index.shape + (1,) * (x.ndim - index.ndim)), number, x).astype(x.dtype)


def _update(x, index, new):
    """Return a copy of x with the elements of `new`, of the same axes, at an index: a boolean mask or any other."""
    if hasattr(index, "dtype") and index.dtype == bool:
        return jnp.where(_mask(index, x), new, x).astype(x.dtype)
    index = _index(index)
    return x.at[index].set(new[index])


def _strides(x):
    """Return the strides of a row-major array, in elements."""
    return tuple(math.prod(x.shape[axis + 1 :]) for axis in range(x.ndim))
