# What ported code carries has no types.
# mypy: ignore-errors
"""Functions that ported code carries: calls of NumPy and SciPy on the host."""

import jax
import jax.numpy as jnp
import numpy as np


def _on_host(f, like, *args):
    """Call a function of NumPy arrays outside JAX; return an array of the shape and dtype of `like`."""

    def call(*arrays):
        return np.asarray(f(*map(np.asarray, arrays))).astype(like.dtype, casting="same_kind")

    return jax.pure_callback(call, jax.ShapeDtypeStruct(like.shape, like.dtype), *args, vmap_method="sequential")


def _on_host_entrywise(f, *args):
    """Call an elementwise function of NumPy arrays outside JAX."""
    args = jnp.broadcast_arrays(*args)
    return _on_host(f, jax.ShapeDtypeStruct(args[0].shape, jnp.result_type(*args, float)), *args)
