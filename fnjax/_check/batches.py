"""Batches of arrays for the checks of jax.vmap and jax.lax.scan."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax._primitives.tree import is_inexact

BATCH = (1.0, 1.01, 0.99)  # the scales of a batch's inputs


def stack(arrays: Sequence[Any]) -> Any:
    """Return a batch of arrays; NumPy compiles nothing for it."""
    keys = jnp.issubdtype(arrays[0].dtype, jax.dtypes.extended)
    return jnp.stack(arrays) if keys else jnp.asarray(np.stack(list(map(np.asarray, arrays))))


def make_examples(x: Any) -> list[Any]:
    """Return a batch of arrays in the domain of the function: scaled, or in another order."""
    if is_inexact(x):
        return [(np.asarray(x) * scale).astype(x.dtype) for scale in BATCH]
    return [jnp.roll(x, k) if x.ndim else x for k in range(len(BATCH))]
