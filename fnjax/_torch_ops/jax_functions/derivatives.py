# Ported code has no types.
# mypy: ignore-errors
"""Functions that differentiated expressions call, and that ports copy: PyTorch's derivatives at ties, bounds, zeros."""

import jax
import jax.numpy as jnp


def _arctan2(y, x):
    """Return the angle of a point; the gradient at the origin is zero."""
    origin = (x == 0) & (y == 0)
    x, y = jnp.where(origin, jnp.copysign(1, x), x), jnp.where(origin, jax.lax.stop_gradient(y), y)
    return jnp.arctan2(y, x)


def _angle(x):
    """Return the angle of complex numbers; the gradient is zero at 0 and for real numbers."""
    return _arctan2(x.imag, x.real) if jnp.iscomplexobj(x) else jax.lax.stop_gradient(jnp.angle(x))


def _abs(x):
    """Return the absolute value; its derivative at 0 and NaN is 0."""
    return jnp.abs(x) if jnp.iscomplexobj(x) else x * jnp.where(jnp.isnan(x), 0, jnp.sign(x))


def _clip(x, min=None, max=None):
    """Clip x; the derivative is 1 at the bounds too, and 0 where x or a bound is NaN."""
    inside, clipped = ~jnp.isnan(x), jax.lax.stop_gradient(x)
    if min is not None:
        inside, clipped = inside & (x >= min), jnp.maximum(clipped, min)
    if max is not None:
        inside, clipped = inside & (x <= max), jnp.minimum(clipped, max)
    return jnp.where(inside, x, clipped)


def _hardtanh(x, low=-1.0, high=1.0):
    """Clip x; the derivative is 0 at the bounds too."""
    return jnp.where(x <= low, low, jnp.where(x >= high, high, x))


def _leaky_relu(x, negative_slope=0.01):
    """Rectify x, with a slope below 0; at 0 the derivative is that slope."""
    return jnp.where(x > 0, x, negative_slope * x)


def _elu(x, alpha=1.0, width=1.0):
    """Return x, and below 0 alpha * (exp(x / width) - 1); where x is NaN the derivative is 1."""
    below = jnp.where(x <= 0, x, 0)
    return jnp.where(x <= 0, alpha * jnp.expm1(below if width == 1 else below / width), x)


def _hypot(x, y):
    """Return the hypotenuse; its derivative at the origin is NaN."""
    origin = (x == 0) & (y == 0)
    at_origin = jnp.sqrt(jnp.where(origin, x, 1) ** 2 + jnp.where(origin, y, 1) ** 2)
    return jnp.where(origin, at_origin, jnp.hypot(jnp.where(origin, 1, x), y))


def _with_slope_zero(x, where):
    """Return x; its derivative is 0 where x is 0 and a condition holds."""
    return jnp.where((x == 0) & where, jax.lax.stop_gradient(x), x)


def _fmax(x, y):
    """Return the larger value, or the one that is not NaN; among equal ones the first has the derivative."""
    return jnp.where((x >= y) | jnp.isnan(y), x, y)


def _fmin(x, y):
    """Return the smaller value, or the one that is not NaN; among equal ones the first has the derivative."""
    return jnp.where((x <= y) | jnp.isnan(y), x, y)


def _sign(x):
    """Return the sign; that of NaN and of -0.0 is 0."""
    if jnp.iscomplexobj(x):
        return _sgn(x)
    return x if x.dtype == bool else jnp.where(x > 0, 1, jnp.where(x < 0, -1, 0)).astype(x.dtype)


def _sgn(x):
    """Return complex numbers divided by their absolute value, and 0 for 0."""
    zero = x == 0
    x = jnp.where(zero, 1, x)
    return jnp.where(zero, 0, x / jnp.abs(x))


def _nextafter(x, y):
    """Return the next float after x towards another number, with the derivative of x."""
    fixed = jax.lax.stop_gradient(x)
    return x + (jnp.nextafter(fixed, jax.lax.stop_gradient(y)) - fixed)


def _norm(x, ord=2, axis=None, keepdims=False):
    """Return the norm of vectors; its derivative at zero is zero."""
    zero = jnp.all(x == 0, axis=axis, keepdims=True)
    norm = jnp.linalg.vector_norm(jnp.where(zero, 1, _abs(x)), axis=axis, keepdims=keepdims, ord=ord)
    return jnp.where(zero if keepdims else jnp.squeeze(zero, axis), 0, norm)


def _std(x, axis=None, keepdims=False, ddof=0, where=None):
    """Return the standard deviation; its derivative is zero where all elements are equal."""
    variance = jnp.var(x, axis=axis, keepdims=keepdims, ddof=ddof, where=where)
    zero = variance == 0
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, variance)))
