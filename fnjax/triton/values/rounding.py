"""Rounding: conversions to floats of 16 bits, whose derivative is that of a conversion, and powers of two."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from fnjax._primitives.jax_internals import opened_by
from fnjax.triton.values import types
from fnjax.triton.values.tensor import canonical

finfo: Any = jnp.finfo  # it has no types


round_p = Primitive("fnjax_round")  # linear: a jax.custom_jvp is not, where it has to be transposed


def rounded(data: jax.Array, kind: types.dtype, toward_zero: bool = False) -> jax.Array:
    """Return floats rounded to 16 bits, to the nearest or toward zero; the derivative is that of a conversion."""
    found: jax.Array = round_p.bind(data, kind=kind, toward_zero=toward_zero)
    return found


def _round(data: jax.Array, kind: types.dtype, toward_zero: bool) -> jax.Array:
    """Round by operations that XLA does not remove as it may remove a conversion."""
    if kind == types.bfloat16:
        near = lax.reduce_precision(data, 8, 7).astype(canonical(kind))
    else:
        small = jnp.rint(data * 2.0**24) * 2.0**-24  # reduce_precision flushes float16's subnormals
        near = jnp.where(jnp.abs(data) < 2.0**-14, small, lax.reduce_precision(data, 5, 10)).astype(canonical(kind))
    if not toward_zero:
        return near
    too_far = jnp.abs(near.astype(data.dtype)) > jnp.abs(data)
    return lax.bitcast_convert_type(lax.bitcast_convert_type(near, jnp.uint16) - too_far.astype(jnp.uint16), near.dtype)


def _jvp(primals: Any, tangents: Any, **how: Any) -> tuple[Any, Any]:
    found = round_p.bind(*primals, **how)
    return found, tangents[0].astype(found.dtype)


def _transpose(cotangent: Any, data: Any, **_: Any) -> list[Any]:
    return [ad.Zero(data.aval) if isinstance(cotangent, ad.Zero) else cotangent.astype(data.aval.dtype)]


round_p.def_impl(jax.jit(_round, static_argnames=("kind", "toward_zero")))
opened_by(round_p, _round)
round_p.def_abstract_eval(lambda data, kind, **_: data.update(dtype=canonical(kind), weak_type=False))
ad.primitive_jvps[round_p] = _jvp
ad.primitive_transposes[round_p] = _transpose
batching.primitive_batchers[round_p] = lambda args, dims, **how: (round_p.bind(*args, **how), dims[0])
mlir.register_lowering(round_p, mlir.lower_fun(_round, multiple_results=False))


def exponent(x: jax.Array) -> jax.Array:
    """Return the binary exponents of floats as integers; XLA flushes subnormal numbers only where it computes."""
    info = finfo(x.dtype)
    bits = lax.bitcast_convert_type(x, f"int{info.bits}") & (2 ** (info.bits - 1) - 1)
    subnormal = info.minexp - info.nmant + info.bits - 1 - lax.clz(bits)
    found = bits >> info.nmant
    return jnp.where(found == 0, subnormal, found - (info.maxexp - 1))


def _power(n: jax.Array) -> jax.Array:
    """Return 2**n for floats that are integers in the range of normal numbers."""
    info = finfo(n.dtype)
    return lax.bitcast_convert_type((n.astype(f"int{info.bits}") + (info.maxexp - 1)) << info.nmant, n.dtype)


def exp2(x: jax.Array) -> jax.Array:
    """Return 2**x, exact for integers: XLA's exp2 is not on the CPU."""
    info = finfo(x.dtype)
    n = jnp.clip(jnp.rint(x), info.minexp, info.maxexp - 1)
    return jnp.exp2(x - n) * _power(n)


def log2(x: jax.Array) -> jax.Array:
    """Return the logarithm to base 2, exact for powers of two: XLA's log2 is not on the CPU."""
    info = finfo(x.dtype)
    root = jnp.asarray(np.sqrt(2), x.dtype)  # the logarithm of x / 2**n is between -1/2 and 1/2
    n = jnp.clip(exponent(x * root).astype(x.dtype), info.minexp + 1, info.maxexp - 2)
    return jnp.log2(x * _power(-n)) + n
