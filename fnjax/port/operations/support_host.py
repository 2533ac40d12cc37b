# What ported code carries has no types.
# mypy: ignore-errors
"""Functions that ported code carries: calls of NumPy and SciPy on the host."""

import jax
import jax.numpy as jnp
import numpy as np


def _on_host(f, like, *args):
    """F of NumPy arrays, run outside JAX; its result has the shape and dtype of `like`."""
    shape = jax.ShapeDtypeStruct(like.shape, like.dtype)
    return jax.pure_callback(
        lambda *a: np.asarray(f(*map(np.asarray, a)), like.dtype), shape, *args, vmap_method="sequential"
    )


def _on_host_entrywise(f, *args):
    """F of NumPy arrays, entry by entry, run outside JAX."""
    args = jnp.broadcast_arrays(*args)
    shape = jax.ShapeDtypeStruct(args[0].shape, jnp.result_type(*args, float))
    return jax.pure_callback(
        lambda *a: np.asarray(f(*map(np.asarray, a)), shape.dtype), shape, *args, vmap_method="expand_dims"
    )
