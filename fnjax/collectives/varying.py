"""Slices, elements and branches at an index that may differ between devices, as ports write them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fnjax.collectives.axes import axis_error, axis_of


def permute(x: jax.Array, src: Any, axis: Any) -> jax.Array:
    """Return the array of the device at index `src`, which each device chooses: what it receives in PyTorch."""
    found: jax.Array = lax.all_gather(x, axis_of(axis))
    return found[src]


def part(x: jax.Array, index: Any, count: int, dim: int = 0) -> jax.Array:
    """Return one of `count` equal slices of an array along a dimension, by an index that may differ between devices.

    Raises:
        AxisError: if the slices would not be equal.
    """
    size, rest = divmod(x.shape[dim], count)
    if rest:
        raise axis_error(
            f"one of {count} slices of dimension {dim} of shape {x.shape}, selected by the device",
            "slices of one size",
            f"{x.shape[dim]} elements",
            f"pad the dimension to a multiple of {count}",
        )
    return lax.dynamic_slice_in_dim(x, index * size, size, dim % x.ndim)


def window(x: jax.Array, start: Any, size: int, dim: int = 0) -> jax.Array:
    """Return `x[start : start + size]` along a dimension, for a `start` that may differ between devices.

    Entries beyond the end, which PyTorch drops, are NaN, or the dtype's lowest number.
    """
    return jnp.take(x, start + jnp.arange(int(size)), axis=dim, mode="fill")


def with_window(x: jax.Array, start: Any, size: int, new: Any, dim: int = 0) -> jax.Array:
    """Return an array after `x[start : start + size] = new`, for a `start` that may differ between devices."""
    at = (slice(None),) * (dim % x.ndim) + (start + jnp.arange(int(size)),)
    return x.at[at].set(jnp.asarray(new).astype(x.dtype), mode="drop")


def entry(arrays: Any, index: Any) -> Any:
    """Return an item of a list of arrays of one shape, or of an array, by an index that may differ between devices.

    Raises:
        AxisError: if the arrays have different shapes.
    """
    if isinstance(arrays, jax.Array):
        return arrays[index]
    shapes = {jnp.shape(a) for a in arrays}
    if len(shapes) > 1:
        raise axis_error(
            "an entry of a list, selected by the device's index",
            "arrays of one shape",
            f"shapes {sorted(shapes)}",
            "pad them to one shape: under jit all devices run one program",
        )
    return jnp.stack([jnp.asarray(a) for a in arrays])[index]


def with_entry(arrays: Sequence[Any], index: Any, new: Any) -> list[Any]:
    """Return a list of arrays with one item replaced, at an index that may differ between devices."""
    if any(jnp.shape(a) != jnp.shape(new) for a in arrays):
        entry([*arrays, new], index)  # raises
    return [jnp.where(index == i, new, a) for i, a in enumerate(arrays)]


def cond(predicate: Any, true: Callable[..., Any], false: Callable[..., Any], *operands: Any) -> Any:
    """Apply `jax.lax.cond` for a predicate that may differ between devices: both branches run, with their collectives.

    The result of jax.lax.cond counts as replicated if only its predicate differs between devices (JAX 0.12).
    """
    if_true, if_false = true(*operands), false(*operands)
    return jax.tree.map(lambda a, b: jnp.where(predicate, a, b), if_true, if_false)
