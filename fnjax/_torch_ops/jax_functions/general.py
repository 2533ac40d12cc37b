# Ported code has no types.
# mypy: ignore-errors
"""Functions that expressions of the table call, and that ports copy: elements, axes, shapes.

Each is emitted as it stands here, with those that it calls, under its own name.
"""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from fnjax._torch_ops.jax_functions.derivatives import _norm
from fnjax._torch_ops.jax_functions.rounding import _quotient


def _to(x, target):
    """Return an array in the named dtype, or in another array's; devices have no effect."""
    if target is None or isinstance(target, str):
        return x
    return x.astype(target.dtype if isinstance(target, jax.Array) else target)


def _linspace(start, end, steps, dtype=None):
    """Return equally spaced numbers, counted from both ends as in PyTorch; integers are truncated."""
    dtype = jnp.result_type(float if dtype is None else dtype)
    kind = np.float64 if jnp.issubdtype(dtype, jnp.integer) else jnp.promote_types(dtype, jnp.float32)
    start, end = (v if isinstance(v, jax.Array) else np.asarray(v).astype(dtype).astype(kind) for v in (start, end))
    step = (end - start) / np.asarray(max(steps - 1, 1), kind)
    i = np.arange(steps).astype(kind)
    where = jnp.where if isinstance(step, jax.Array) else np.where
    found = where(i < max(steps // 2, 1), start + step * i, end - step * (steps - 1 - i))
    return jnp.asarray(found.astype(dtype))


def _logspace(start, end, steps, base=10.0, dtype=None):
    """Return powers of a base, computed in float64 as in PyTorch; exponents are counted from both ends."""
    dtype = jnp.result_type(float if dtype is None else dtype)
    if any(isinstance(v, jax.Array) for v in (start, end)) or jnp.issubdtype(dtype, jnp.complexfloating):
        return jnp.logspace(start, end, steps, base=base, dtype=dtype)
    first, last = (np.asarray(v).astype(dtype).astype(np.float64) for v in (start, end))
    step, i = (last - first) / max(steps - 1, 1), np.arange(steps)
    exponents = [start] if steps == 1 else np.where(i < steps // 2, first + step * i, last - step * i[::-1])
    with np.errstate(all="ignore"):
        return jnp.asarray(np.array([np.float64(base) ** np.float64(e) for e in exponents]).astype(dtype))


def _log(x, base):
    """Return the logarithm to base 2.0 or 10.0, exact for integer powers of the base."""
    found = jnp.log2(x) if base == 2 else jnp.log10(x)
    whole = jnp.round(found)
    exact = jnp.isfinite(found) & (base**whole == x)
    return found + jax.lax.stop_gradient(jnp.where(exact, whole - found, 0))


def _floor_divide(x, y):
    """Return the quotient rounded down, as in PyTorch: of floats it is infinite where y is zero, and may be -0.0."""
    if jnp.issubdtype(jnp.result_type(x, y), jnp.integer):
        return jnp.floor_divide(x, y)
    return jnp.where(jnp.equal(y, 0), x / y, jnp.copysign(jnp.floor_divide(x, y), x / y))


def _truncated_divide(x, y):
    """Return the quotient rounded towards zero; integers stay integers."""
    if jnp.issubdtype(jnp.result_type(x, y), jnp.integer):
        quotient = jnp.floor_divide(x, y)
        return quotient + ((quotient < 0) & (quotient * y != x)).astype(quotient.dtype)
    return jnp.trunc(x / y)


def _picked(x, indices, axis, keepdims):
    """Return the pair of the elements at these indices along an axis, and the indices."""
    values = jnp.take_along_axis(x, indices, axis=axis)
    return (values, indices) if keepdims else (jnp.squeeze(values, axis), jnp.squeeze(indices, axis))


def _max(x, axis, keepdims=False):
    """Return the largest elements along an axis and their indices; only elements there have a gradient, as in PyTorch."""
    if x.ndim == 0:
        return x, jnp.zeros((), int)
    return _picked(x, jnp.argmax(x, axis=axis, keepdims=True), axis, keepdims)


def _min(x, axis, keepdims=False):
    """Return the smallest elements along an axis and their indices; only elements there have a gradient, as in PyTorch."""
    if x.ndim == 0:
        return x, jnp.zeros((), int)
    return _picked(x, jnp.argmin(x, axis=axis, keepdims=True), axis, keepdims)


def _sort(x, axis=-1, descending=False):
    """Return sorted elements, and their former indices."""
    if x.ndim == 0:
        return x, jnp.zeros((), int)
    indices = jnp.argsort(x, axis=axis, descending=descending)
    return jnp.take_along_axis(x, indices, axis=axis), indices


def _topk(x, k, axis=-1, largest=True):
    """Return the k largest (or smallest) elements along an axis in order, and their indices."""
    indices = jnp.argsort(x, axis=axis, descending=largest)
    indices = jax.lax.slice_in_dim(indices, 0, k, axis=axis % x.ndim)
    return jnp.take_along_axis(x, indices, axis=axis), indices


def _kthvalue(x, k, axis=-1, keepdims=False):
    """Return the k-th smallest elements along an axis, counted from 1, and their indices."""
    if x.ndim == 0:
        return x, jnp.zeros((), int)
    indices = jnp.argsort(x, axis=axis)
    return _picked(x, jax.lax.slice_in_dim(indices, k - 1, k, axis=axis % x.ndim), axis, keepdims)


def _median_along(x, axis, keepdims=False):
    """Return the lower median along an axis and its index; NaN where there is one."""
    if x.ndim == 0:
        return x, jnp.zeros((), int)
    order = jnp.argsort(x, axis=axis)
    middle = jax.lax.slice_in_dim(order, (x.shape[axis] - 1) // 2, (x.shape[axis] - 1) // 2 + 1, axis=axis % x.ndim)
    nan = jnp.isnan(x)
    first = jnp.argmax(nan, axis=axis, keepdims=True)
    return _picked(x, jnp.where(jnp.any(nan, axis=axis, keepdims=True), first, middle), axis, keepdims)


def _median(x):
    """Return the lower median of all elements, as PyTorch defines it; those that are equal share its gradient."""
    return _share_gradient(x, _median_along(x.ravel(), 0)[0]) if x.size else jnp.full((), jnp.nan, x.dtype)


def _share_gradient(x, value):
    """Return a value that x has; all elements that are equal to it share its gradient."""
    value = jax.lax.stop_gradient(value)
    if not jnp.issubdtype(x.dtype, jnp.inexact):
        return value
    equal = (x == value) | (jnp.isnan(value) & jnp.isnan(x))
    mean = jnp.sum(jnp.where(equal, x, 0) / jnp.sum(equal))
    zero = jnp.sum(jnp.where(equal, x - jax.lax.stop_gradient(x), 0) / jnp.sum(equal))
    return jnp.where(jnp.isfinite(value), value + zero, mean).astype(value.dtype)


def _nanmedian_along(x, axis, keepdims=False):
    """Return the lower median of the elements along an axis that are not NaN, and its index."""
    if x.ndim == 0:
        return x, jnp.zeros((), int)
    count = jnp.sum(~jnp.isnan(x), axis=axis, keepdims=True)
    order = jnp.argsort(x, axis=axis)
    return _picked(x, jnp.take_along_axis(order, jnp.maximum(count - 1, 0) // 2, axis=axis), axis, keepdims)


def _nanmedian(x):
    """Return the lower median of all elements that are not NaN; all elements that are equal share its gradient."""
    return _share_gradient(x, _nanmedian_along(x.ravel(), 0)[0]) if x.size else jnp.full((), jnp.nan, x.dtype)


def _quantile(x, q, axis=None, keepdims=False, method="linear", skip_nan=False):
    """Return quantiles as PyTorch computes them: from the sorted elements below and above, whose places are known."""
    shape = [1 if axis is None or i == axis % x.ndim else n for i, n in enumerate(x.shape)]
    x, q = (x.ravel() if axis is None or not x.ndim else jnp.moveaxis(x, axis, -1)), jnp.asarray(q, x.dtype)
    x = jnp.take_along_axis(x, jnp.argsort(x, axis=-1), axis=-1)
    nan = jnp.isnan(x)
    last = x.shape[-1] - 1 - jnp.sum(nan, axis=-1, keepdims=True) * skip_nan
    rank = jax.lax.stop_gradient(q.ravel() * jnp.maximum(last, 0).astype(x.dtype))
    rank = rank if skip_nan else jnp.where(jnp.any(nan, axis=-1, keepdims=True), last, rank)
    rank = {"lower": jnp.floor, "higher": jnp.ceil, "nearest": jnp.round}.get(method, jnp.asarray)(rank)
    found = below = jnp.take_along_axis(x, rank.astype(int), axis=-1)
    if method in {"linear", "midpoint"}:
        weight = jnp.full_like(rank, 0.5) if method == "midpoint" else rank - jnp.floor(rank)
        above = jnp.take_along_axis(x, jnp.ceil(rank).astype(int), axis=-1)
        found = jnp.where(weight < 0.5, below + weight * (above - below), above - (above - below) * (1 - weight))
    found = jnp.moveaxis(found, -1, 0)
    found = found.reshape(-1, *shape) if keepdims else found
    return found if q.ndim else found[0]


def _mode(x, axis=-1, keepdims=False):
    """Return the most frequent element along an axis (the smallest of them), and its last index."""
    if x.ndim == 0:
        return x, jnp.zeros((), int)
    moved = jnp.moveaxis(x, axis, -1)
    counts = jnp.sum(moved[..., :, None] == moved[..., None, :], axis=-1)
    frequent = counts == jnp.max(counts, axis=-1, keepdims=True)
    order = jnp.argsort(moved, axis=-1)
    first = jnp.argmax(jnp.take_along_axis(frequent, order, axis=-1), axis=-1, keepdims=True)
    value = jnp.take_along_axis(moved, jnp.take_along_axis(order, first, axis=-1), axis=-1)
    last = x.shape[axis] - 1 - jnp.argmax((moved == value)[..., ::-1], axis=-1, keepdims=True)
    return _picked(x, jnp.moveaxis(last, -1, axis), axis, keepdims)


def _extreme_so_far(x, axis, better):
    """Return the running extreme along an axis, and its last index so far."""
    if x.ndim == 0:
        return x, jnp.zeros((), int)
    places = jnp.broadcast_to(
        jnp.expand_dims(jnp.arange(x.shape[axis]), [i for i in range(x.ndim) if i != axis % x.ndim]), x.shape
    )

    def later(left, right):
        take = better(right[0], left[0]) | jnp.isnan(right[0])
        return jnp.where(take, right[0], left[0]), jnp.where(take, right[1], left[1])

    return jax.lax.associative_scan(later, (x, places), axis=axis)


def _cummax(x, axis):
    """Return the largest element so far along an axis, and its last index."""
    return _extreme_so_far(x, axis, jnp.greater_equal)


def _cummin(x, axis):
    """Return the smallest element so far along an axis, and its last index."""
    return _extreme_so_far(x, axis, jnp.less_equal)


def _logcumsumexp(x, axis):
    """Return the logarithms of the running sums of exponentials along an axis."""
    if jnp.iscomplexobj(x) and x.ndim:
        return jax.lax.associative_scan(_logaddexp, x, axis=axis % x.ndim)
    return jax.lax.cumlogsumexp(x, axis=axis % x.ndim) if x.ndim else x


def _logaddexp(x, y):
    """Return the logarithm of a sum of exponentials; for complex numbers the imaginary part is not wrapped."""
    larger, smaller = jnp.where(x.real < y.real, y, x), jnp.where(x.real < y.real, x, y)
    return larger + jnp.log1p(jnp.exp(smaller - larger))


def _cumulative_trapezoid(y, x=None, dx=1, axis=-1):
    """Return running integrals by the trapezoidal rule."""
    y = jnp.moveaxis(y, axis, -1)
    if x is not None:
        dx = jnp.diff(jnp.moveaxis(x, axis, -1) if x.ndim == y.ndim else x, axis=-1)
    return jnp.moveaxis(jnp.cumsum((y[..., 1:] + y[..., :-1]) * dx / 2, axis=-1), -1, axis)


def _gradient(x, spacing=1, axis=None, edge_order=1):
    """Return derivatives by central differences, one array for each axis."""
    spacing = (1,) if spacing is None else spacing if isinstance(spacing, (list, tuple)) else (spacing,)
    found = jnp.gradient(x, *spacing, axis=axis)
    found = tuple(found) if isinstance(found, (list, tuple)) else (found,)
    if edge_order == 1:
        return found
    axes = range(x.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    spacing = spacing * len(found) if len(spacing) == 1 else spacing
    return tuple(_second_order_edges(x, g, h, a) for g, h, a in zip(found, spacing, axes, strict=True))


def _second_order_edges(x, found, spacing, axis):
    """Return central differences along an axis, at both ends by three elements."""
    x, found = jnp.moveaxis(x, axis, 0), jnp.moveaxis(found, axis, 0)
    steps = jnp.diff(spacing) if jnp.ndim(spacing) else jnp.full(x.shape[0] - 1, spacing)

    def at_end(a, b, c, h, k):
        return -(2 * h + k) / (h * (h + k)) * a + (h + k) / (h * k) * b - h / (k * (h + k)) * c

    found = found.at[0].set(at_end(x[0], x[1], x[2], steps[0], steps[1]).astype(found.dtype))
    found = found.at[-1].set(-at_end(x[-1], x[-2], x[-3], steps[-1], steps[-2]).astype(found.dtype))
    return jnp.moveaxis(found, 0, axis)


def _searchsorted(sequence, values, side=None, right=False, sorter=None):
    """Return the indices at which values belong in sorted sequences, row by row if there are several."""
    if sorter is not None:
        sequence = jnp.take_along_axis(sequence, sorter, axis=-1)
    side = side or ("right" if right else "left")
    if sequence.ndim == 1:
        return jnp.searchsorted(sequence, values, side=side).astype(int)
    rows = sequence.reshape(-1, sequence.shape[-1])
    found = jax.vmap(lambda row, value: jnp.searchsorted(row, value, side=side))(rows, values.reshape(len(rows), -1))
    return found.reshape(values.shape).astype(int)


def _histc(x, bins=100, low=0, high=0):
    """Count the elements in each of equal bins; elements outside are not counted."""
    if low == high:
        low, high = jnp.min(x), jnp.max(x)
        low, high = jnp.where(low == high, low - 1, low), jnp.where(low == high, high + 1, high)
    place = jnp.minimum(jnp.floor(_quotient(x - low, high - low) * bins), bins - 1)
    inside = (x >= low) & (x <= high)
    return jnp.zeros(bins, x.dtype).at[jnp.where(inside, place, 0).astype(int)].add(inside.astype(x.dtype))


def _bincount(x, length, weights=None):
    """Count each number, or sum its weights; under jit all numbers must be below the length."""
    if not isinstance(x, jax.core.Tracer):
        if jnp.min(x, initial=0) < 0:
            raise RuntimeError("bincount only supports 1-d non-negative integral inputs.")
        length = max(length, int(jnp.max(x, initial=-1)) + 1)
    if weights is not None and weights.dtype != jnp.float32:
        weights = weights.astype(float)
    return jnp.bincount(x, weights=weights, length=length)


def _renorm(x, p, axis, maxnorm):
    """Scale slices along an axis down to a largest norm."""
    others = tuple(i for i in range(x.ndim) if i != axis % x.ndim)
    norm = _norm(x, ord=p, axis=others, keepdims=True)
    return jnp.where(norm > maxnorm, x * (maxnorm / (norm + 1e-7)), x)


def _zeta(x, q):
    """Evaluate Hurwitz's zeta function, which is not defined below 1."""
    return jnp.where(x < 1, jnp.nan, jax.scipy.special.zeta(x, q))


def _polygamma(n, x):
    """Return derivatives of digamma, where JAX's hold for positive numbers only; those below -24 have none."""
    if not isinstance(n, int) or n == 0:
        return jax.scipy.special.polygamma(n, x)
    if n == 1:
        right = jax.scipy.special.polygamma(1, jnp.where(x < 0.5, 1 - x, x))
        return jnp.where(x < 0.5, jnp.square(jnp.pi / jnp.sin(jnp.pi * x)) - right, right)
    shifted = jnp.where(x < 0.5, x + 24, x)
    before = sum(jnp.where(x < 0.5, x + k, 1.0) ** -(n + 1.0) for k in range(24))
    right = jax.scipy.special.polygamma(n, jnp.where(x < -24, jnp.nan, shifted))
    return right + jnp.where(x < 0.5, (-1) ** (n + 1) * math.factorial(n) * before, 0)


def _integer_power(x, exponent):
    """Return a power of integers: 0 for a negative exponent, except for powers of 1 and -1."""
    exponent = jnp.asarray(exponent).astype(jnp.result_type(x, exponent))
    odd = jnp.where(exponent % 2 == 0, 1, x)
    below = jnp.where(jnp.abs(x) == 1, odd, 0)
    return jnp.where(exponent < 0, below, x ** jnp.maximum(exponent, 0))


def _sum_to_size(x, shape):
    """Sum a gradient to the shape before broadcasting."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    x = jnp.sum(x, axis=tuple(range(x.ndim - len(shape))))
    return jnp.sum(x, axis=tuple(i for i, n in enumerate(shape) if n == 1 and x.shape[i] != 1), keepdims=True)


def _squeeze(x, axis):
    """Remove these axes if their size is 1."""
    if isinstance(axis, int):
        return jnp.squeeze(x, axis) if x.ndim and x.shape[axis] == 1 else x
    return jnp.squeeze(x, tuple(a for a in axis if x.ndim and x.shape[a] == 1))


def _unflatten(x, axis, sizes):
    """Split one axis into several; a size may be -1."""
    axis = axis % x.ndim
    rest = -x.shape[axis] // math.prod(sizes)
    return x.reshape((*x.shape[:axis], *(rest if n == -1 else n for n in sizes), *x.shape[axis + 1 :]))


def _resize(x, shape):
    """Return the first elements in another shape; zeros for missing ones, which PyTorch leaves uninitialised."""
    size = math.prod(shape)
    flat = x.ravel()[:size]
    return jnp.pad(flat, (0, size - flat.size)).reshape(shape)


def _flatten(x, start, end=-1):
    """Merge the axes from start to end into one."""
    if x.ndim == 0:
        return x.reshape(1)
    start, end = start % x.ndim, end % x.ndim
    return x.reshape((*x.shape[:start], math.prod(x.shape[start : end + 1]), *x.shape[end + 1 :]))


def _expand(x, shape):
    """Broadcast to a shape in which -1 leaves an axis as it is."""
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    own = (1,) * (len(shape) - x.ndim) + x.shape
    return jnp.broadcast_to(x, tuple(old if new == -1 else new for new, old in zip(shape, own, strict=True)))


def _chunk(x, chunks, axis=0):
    """Split an axis into at most so many pieces of one size; the last may be smaller."""
    return _split(x, -(-x.shape[axis] // chunks), axis) if x.shape[axis] else (x,) * chunks


def _split(x, size, axis=0):
    """Split an axis into pieces of one size (the last may be smaller), or of the given sizes."""
    if isinstance(size, int):
        return tuple(jnp.split(x, list(range(size, x.shape[axis], size)), axis=axis))
    return tuple(jnp.split(x, list(itertools.accumulate(size))[:-1], axis=axis))


def _diag_embed(x, offset=0, axis1=-2, axis2=-1):
    """Return matrices with the last axis on a diagonal."""
    size = x.shape[-1] + abs(offset)
    rows = jnp.arange(x.shape[-1]) + max(-offset, 0)
    columns = jnp.arange(x.shape[-1]) + max(offset, 0)
    matrices = jnp.zeros((*x.shape[:-1], size, size), x.dtype).at[..., rows, columns].set(x)
    return jnp.moveaxis(matrices, (-2, -1), (axis1, axis2))


def _cartesian_prod(*arrays):
    """Return all tuples of elements, one per row."""
    if len(arrays) == 1:
        return arrays[0]
    return jnp.stack([a.ravel() for a in jnp.meshgrid(*arrays, indexing="ij")], axis=-1)


def _combinations(x, r=2, with_replacement=False):
    """Return all combinations of r elements, one per row."""
    choose = itertools.combinations_with_replacement if with_replacement else itertools.combinations
    return x[np.array(list(choose(range(x.shape[0]), r)), dtype=int).reshape(-1, r)]


def _atleast_3d(*arrays):
    """Return the array with at least three axes: new ones come last for matrices, and around a vector."""
    found = [jnp.atleast_3d(a) for a in arrays]
    return found[0] if len(found) == 1 else found


def _windows(x, axis, size, step):
    """Return windows of one size along an axis, with their elements as a new last axis."""
    if x.ndim == 0:
        return x.reshape(1)[:size]
    starts = jnp.arange(0, x.shape[axis] - size + 1, step)
    taken = jnp.take(x, starts[:, None] + jnp.arange(size), axis=axis)
    return jnp.moveaxis(taken, axis % x.ndim + 1, -1)


def _pixel_shuffle(x, factor):
    """Move channels to pixels: (*, c f f, h, w) to (*, c, h f, w f)."""
    *batch, c, h, w = x.shape
    x = x.reshape(*batch, c // factor**2, factor, factor, h, w)
    n = len(batch)
    x = jnp.transpose(x, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return x.reshape(*batch, c // factor**2, h * factor, w * factor)


def _pixel_unshuffle(x, factor):
    """Move pixels to channels: (*, c, h f, w f) to (*, c f f, h, w)."""
    *batch, c, h, w = x.shape
    x = x.reshape(*batch, c, h // factor, factor, w // factor, factor)
    n = len(batch)
    x = jnp.transpose(x, (*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return x.reshape(*batch, c * factor**2, h // factor, w // factor)


def _channel_shuffle(x, groups):
    """Interleave the channels of all groups."""
    n, c, *rest = x.shape
    return jnp.swapaxes(x.reshape(n, groups, c // groups, *rest), 1, 2).reshape(x.shape)
