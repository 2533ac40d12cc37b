# What ported code carries has no types.
# mypy: ignore-errors
"""Functions that ported code carries where it is differentiated: PyTorch's derivatives at ties, bounds and zeros."""

import jax
import jax.numpy as jnp


def _arctan2(y, x):
    """The angle of a point, of which that of the origin takes no gradient."""
    origin = (x == 0) & (y == 0)
    x, y = jnp.where(origin, jnp.copysign(1, x), x), jnp.where(origin, jax.lax.stop_gradient(y), y)
    return jnp.arctan2(y, x)


def _angle(x):
    """The angle of complex numbers, of which that of 0 takes no gradient, as none of a real number does."""
    return _arctan2(x.imag, x.real) if jnp.iscomplexobj(x) else jax.lax.stop_gradient(jnp.angle(x))


def _abs(x):
    """The absolute value; its derivative at 0 is 0."""
    return jnp.abs(x) if jnp.iscomplexobj(x) else x * jnp.sign(x)


def _clip(x, min=None, max=None):
    """Clipped; the derivative is 1 at the bounds too."""
    low = x if min is None else jnp.where(x < min, min, x)
    return low if max is None else jnp.where(low > max, max, low)


def _hardtanh(x, low=-1.0, high=1.0):
    """Clipped; the derivative is 0 at the bounds too."""
    return jnp.where(x <= low, low, jnp.where(x >= high, high, x))


def _leaky_relu(x, negative_slope=0.01):
    """Rectified, with a slope below 0; at 0 the derivative is that below."""
    return jnp.where(x > 0, x, negative_slope * x)


def _fmax(x, y):
    """The larger, or that which is no NaN; of equal ones the first has the derivative."""
    return jnp.where((x >= y) | jnp.isnan(y), x, y)


def _fmin(x, y):
    """The smaller, or that which is no NaN; of equal ones the first has the derivative."""
    return jnp.where((x <= y) | jnp.isnan(y), x, y)


def _nextafter(x, y):
    """The next number towards another, with the derivative of x."""
    fixed = jax.lax.stop_gradient(x)
    return x + (jnp.nextafter(fixed, jax.lax.stop_gradient(y)) - fixed)


def _norm(x, ord=2, axis=None, keepdims=False):
    """The norm of vectors; its derivative at zero is zero."""
    zero = jnp.all(x == 0, axis=axis, keepdims=True)
    norm = jnp.linalg.vector_norm(jnp.where(zero, 1, _abs(x)), axis=axis, keepdims=keepdims, ord=ord)
    return jnp.where(zero if keepdims else jnp.squeeze(zero, axis), 0, norm)


def _std(x, axis=None, keepdims=False, ddof=0):
    """The standard deviation; its derivative is zero where all entries are equal."""
    variance = jnp.var(x, axis=axis, keepdims=keepdims, ddof=ddof)
    zero = variance == 0
    return jnp.where(zero, 0, jnp.sqrt(jnp.where(zero, 1, variance)))
