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
    """A copy of x with `value` at an index: a boolean mask, for which it is one number for all entries, or whole numbers."""
    if index.dtype == bool:
        return jnp.where(_mask(index, x), value, x).astype(x.dtype)
    return x.at[index].set(value)
