"""Rounding: conversions to floats of 16 bits, whose derivative is that of a conversion, and quotients."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fnjax.triton.values import types
from fnjax.triton.values.tensor import canonical


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def rounded(data: Any, kind: types.dtype) -> Any:
    """Return floats rounded to 16 bits, by operations that XLA does not remove as it may remove a conversion."""
    if kind == types.bfloat16:
        return lax.reduce_precision(data, 8, 7).astype(canonical(kind))
    small = jnp.rint(data * 2.0**24) * 2.0**-24  # reduce_precision flushes float16's subnormals
    return jnp.where(jnp.abs(data) < 2.0**-14, small, lax.reduce_precision(data, 5, 10)).astype(canonical(kind))


@functools.partial(jax.custom_jvp, nondiff_argnums=(1,))
def toward_zero(data: Any, kind: types.dtype) -> Any:
    """Return floats rounded to 16 bits toward zero."""
    near = rounded(data, kind)
    bits = lax.bitcast_convert_type(near, jnp.uint16)
    too_far = jnp.abs(near.astype(data.dtype)) > jnp.abs(data)
    return lax.bitcast_convert_type(bits - too_far.astype(jnp.uint16), near.dtype)


@rounded.defjvp
def _(kind: types.dtype, primals: Any, tangents: Any) -> Any:
    return rounded(*primals, kind), tangents[0].astype(canonical(kind))


@toward_zero.defjvp
def _(kind: types.dtype, primals: Any, tangents: Any) -> Any:
    return toward_zero(*primals, kind), tangents[0].astype(canonical(kind))


def quotient(xp: Any, x: Any, y: Any) -> Any:
    """Return x / y as a division rounds it: XLA multiplies by 1 / y where y is a constant or broadcasts."""
    if xp is np:
        return np.divide(x, y)
    return x / jnp.where(x < -jnp.inf, lax.stop_gradient(x), y)  # nothing is, but XLA does not know that
