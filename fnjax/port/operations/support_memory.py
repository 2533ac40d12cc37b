# What ported code carries has no types.
# mypy: ignore-errors
"""Functions that ported code carries where PyTorch writes to memory through views and masks."""

from __future__ import annotations

import jax.numpy as jnp


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


def _set(x, index, value):
    """A copy of x with `value` at an index: a mask, for whose entries there is one value or one each, or any other."""
    if not (hasattr(index, "dtype") and index.dtype == bool):
        return x.at[index].set(value)
    if jnp.ndim(value) > x.ndim - index.ndim:
        order = jnp.cumsum(index.ravel()) - 1
        value = value[jnp.clip(order, 0, len(value) - 1)].reshape(index.shape + value.shape[1:])
    return jnp.where(_mask(index, x), value, x).astype(x.dtype)


def _update(x, index, new):
    """A copy of x with the entries of `new`, an array with the same axes, at an index: a boolean mask or any other."""
    if hasattr(index, "dtype") and index.dtype == bool:
        return jnp.where(_mask(index, x), new, x).astype(x.dtype)
    return x.at[index].set(new[index])
