# Ported code has no types.
# mypy: ignore-errors
"""Functions that expressions of the table call, and that ports copy: differences, quotients, means and roots that round as PyTorch's."""

import jax
import jax.numpy as jnp
import numpy as np


def _difference(a, b):
    """Return a - b, and 0 where both are equal: under jit XLA may round a product in one of them differently."""
    found = a - b
    return found - jax.lax.stop_gradient(jnp.where(a == b, found, 0))


def _opaque(x):
    """Return floats unchanged; XLA does not simplify a division with the operation that computes them."""
    if not isinstance(x, jax.Array) or x.dtype not in (np.float32, np.float64):
        return x
    bits = jnp.finfo(x.dtype)
    return jax.lax.reduce_precision(x, bits.nexp, bits.nmant)


def _quotient(a, b):
    """Return a / b, correctly rounded.

    XLA multiplies by 1 / b where b is a constant or is broadcast, and rewrites x / s / t and 1 / sqrt(x).
    """
    own = jnp.result_type(a, b)
    if not jnp.issubdtype(own, jnp.floating):
        return a / b
    bits = jnp.finfo(own)
    a, b = (jax.lax.reduce_precision(jnp.asarray(v, own), bits.nexp, bits.nmant) for v in (a, b))
    return a / jnp.where(a < -jnp.inf, jax.lax.stop_gradient(a), b)  # nothing is, but XLA does not know that


def _mean(x, axis=None, keepdims=False, dtype=None, where=None):
    """Return the sum divided by the number of elements; the division is correctly rounded."""
    own = jnp.dtype(x.dtype if dtype is None else dtype)
    total = jnp.sum(x, axis=axis, keepdims=keepdims, dtype=jnp.promote_types(own, np.float32), where=where)
    if where is None:
        count = x.size // total.size if total.size else 0
    else:
        count = jnp.sum(jnp.broadcast_to(where, x.shape), axis=axis, keepdims=keepdims)
    return _quotient(total, count).astype(own)


def _rsqrt(x):
    """Return 1 / sqrt(x); XLA does not replace it by an approximation."""
    return 1 / _opaque(jnp.sqrt(x)) if jnp.issubdtype(x.dtype, jnp.floating) else jax.lax.rsqrt(x)


def _power(x, exponent):
    """Return the power; roots are those of jnp.sqrt."""
    if isinstance(exponent, float) and abs(exponent) == 0.5:
        return jnp.sqrt(x) if exponent > 0 else _rsqrt(x)
    return x**exponent


def _fake_quantize(x, scale, zero_point, low, high, axis=None):
    """Return the nearest levels of quantised numbers; the gradient passes where they are in the range."""
    if isinstance(zero_point, int) and not low <= zero_point <= high:
        raise ValueError("`zero_point` must be between `quant_min` and `quant_max`.")
    shape = () if axis is None else [-1 if i == axis % x.ndim else 1 for i in range(x.ndim)]
    scale, zero_point = (jnp.asarray(v, np.float32).reshape(shape) for v in (scale, zero_point))
    wide = x.astype(jnp.promote_types(x.dtype, np.float32))
    level = jax.lax.stop_gradient(zero_point + jnp.round(wide * (1 / scale)))
    level_in_range = jnp.clip(jnp.where(jnp.isnan(level), low, level), low, high).astype(np.float32)
    found = (level_in_range - zero_point) * scale
    passed = jnp.where((low <= level) & (level <= high), x, 0)
    return jax.lax.stop_gradient(found).astype(x.dtype) + (passed - jax.lax.stop_gradient(passed))


# Ports carry the function above; here a division is one equation, which has a transpose.
from fnjax._primitives.division import quotient as _quotient  # noqa: E402
