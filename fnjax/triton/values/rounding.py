"""Rounding: conversions to floats of 16 bits, whose derivative is that of a conversion, and powers of two."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fnjax.triton.values import types
from fnjax.triton.values.tensor import canonical

finfo: Any = jnp.finfo  # it has no types


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


def exponent(x: Any) -> Any:
    """Return the binary exponents of floats as integers; XLA flushes subnormal numbers only where it computes."""
    info = finfo(x.dtype)
    bits = lax.bitcast_convert_type(x, f"int{info.bits}") & (2 ** (info.bits - 1) - 1)
    subnormal = info.minexp - info.nmant + info.bits - 1 - lax.clz(bits)
    found = bits >> info.nmant
    return jnp.where(found == 0, subnormal, found - (info.maxexp - 1))


def _power(n: Any) -> Any:
    """Return 2**n for floats that are integers in the range of normal numbers."""
    info = finfo(n.dtype)
    return lax.bitcast_convert_type((n.astype(f"int{info.bits}") + (info.maxexp - 1)) << info.nmant, n.dtype)


def exp2(x: Any) -> Any:
    """Return 2**x, exact for integers: XLA's exp2 is not on the CPU."""
    info = finfo(x.dtype)
    n = jnp.clip(jnp.rint(x), info.minexp, info.maxexp - 1)
    return jnp.exp2(x - n) * _power(n)


def log2(x: Any) -> Any:
    """Return the logarithm to base 2, exact for powers of two: XLA's log2 is not on the CPU."""
    info = finfo(x.dtype)
    root = jnp.asarray(np.sqrt(2), x.dtype)  # the logarithm of x / 2**n is between -1/2 and 1/2
    n = jnp.clip(exponent(x * root).astype(x.dtype), info.minexp + 1, info.maxexp - 2)
    return jnp.log2(x * _power(-n)) + n
