# Ported code has no types.
# mypy: ignore-errors
"""Functions that expressions of the table call, and that ports copy: layers over spatial axes."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from fnjax._torch_ops.jax_functions.general import _max
from fnjax._torch_ops.jax_functions.rounding import _quotient


def _each(value, rank):
    """Return one value for each spatial axis."""
    value = tuple(value) if isinstance(value, (tuple, list)) else (value,)
    return value * rank if len(value) == 1 else value


def _prelu(x, weight):
    """Rectify x, with a learned slope below zero for each channel."""
    if weight.size > 1 and x.ndim > 1:
        weight = weight.reshape(-1, *(1,) * (x.ndim - 2))
    return jnp.where(x > 0, x, weight.reshape(()) * x if weight.size == 1 else weight * x)


def _softplus(x, beta=1.0, threshold=20.0):
    """Return log(1 + exp(beta x)) / beta, and x itself above the threshold."""
    return jnp.where(x * beta > threshold, x, jax.nn.softplus(x * beta) / beta)


def _safe_softmax(x, axis, dtype=None):
    """Return the softmax, and zeros where all elements are minus infinity."""
    x = x if dtype is None else x.astype(dtype)
    nothing = jnp.all(x == -jnp.inf, axis=axis, keepdims=True)
    return jnp.where(nothing, 0, jax.nn.softmax(jnp.where(nothing, 0, x), axis=axis))


def _softmax_grad(grad, output, axis):
    """Return the gradient of softmax, from its output."""
    return output * (grad - jnp.sum(grad * output, axis=axis, keepdims=True))


def _log_softmax_grad(grad, output, axis):
    """Return the gradient of log-softmax, from its output."""
    return grad - jnp.exp(output) * jnp.sum(grad, axis=axis, keepdims=True)


def _linear(x, weight, bias=None):
    """Return the matrix product with the transposed weight, plus the bias."""
    return x @ weight.T if bias is None else x @ weight.T + bias


def _bilinear(x, y, weight, bias=None):
    """Return a bilinear form for each output."""
    out = jnp.einsum("...i,oij,...j->...o", x, weight, y)
    return out if bias is None else out + bias


def _conv(x, weight, bias=None, rank=2, stride=1, padding=0, dilation=1, groups=1):
    """Convolve over the last axes, (channels, ...) or (batch, channels, ...), as in torch.nn.functional."""
    single = x.ndim == rank + 1
    pads = padding.upper() if isinstance(padding, str) else [(p, p) for p in _each(padding, rank)]
    if pads == "SAME":  # PyTorch puts the odd one at the end, whatever the stride, which is 1
        total = [d * (k - 1) for d, k in zip(_each(dilation, rank), weight.shape[2:], strict=True)]
        pads = [(t // 2, t - t // 2) for t in total]
    out = jax.lax.conv_general_dilated(
        x[None] if single else x,
        weight,
        window_strides=_each(stride, rank),
        padding=pads,
        rhs_dilation=_each(dilation, rank),
        feature_group_count=groups,
    )
    if bias is not None:
        out = out + bias.reshape(-1, *(1,) * rank)
    return out[0] if single else out


def _conv_transpose(x, weight, bias=None, rank=2, stride=1, padding=0, output_padding=0, groups=1, dilation=1):
    """Apply a transposed convolution over the last axes, as in torch.nn.functional."""
    single = x.ndim == rank + 1
    stride, dilation, size = _each(stride, rank), _each(dilation, rank), weight.shape[2:]
    pads = [
        (d * (k - 1) - p, d * (k - 1) - p + o)
        for d, k, p, o in zip(dilation, size, _each(padding, rank), _each(output_padding, rank), strict=True)
    ]
    kernel = weight.reshape(groups, weight.shape[0] // groups, weight.shape[1], *size)
    kernel = jnp.swapaxes(kernel, 1, 2).reshape(groups * weight.shape[1], weight.shape[0] // groups, *size)
    out = jax.lax.conv_general_dilated(
        x[None] if single else x,
        jnp.flip(kernel, tuple(range(2, rank + 2))),
        window_strides=(1,) * rank,
        padding=pads,
        lhs_dilation=stride,
        rhs_dilation=dilation,
        feature_group_count=groups,
    )
    if bias is not None:
        out = out + bias.reshape(-1, *(1,) * rank)
    return out[0] if single else out


def _conv_input_grad(shape, weight, grad, rank=2, stride=1, padding=0, dilation=1, groups=1):
    """Return the gradient of a convolution with respect to its input."""
    like = jnp.zeros(shape, grad.dtype)
    _, pullback = jax.vjp(lambda x: _conv(x, weight, None, rank, stride, padding, dilation, groups), like)
    return pullback(grad)[0]


def _conv_weight_grad(x, shape, grad, rank=2, stride=1, padding=0, dilation=1, groups=1):
    """Return the gradient of a convolution with respect to its weight."""
    like = jnp.zeros(shape, grad.dtype)
    _, pullback = jax.vjp(lambda weight: _conv(x, weight, None, rank, stride, padding, dilation, groups), like)
    return pullback(grad)[0]


def _convolution(x, weight, bias, stride, padding, dilation, transposed, output_padding, groups):
    """Apply a convolution, or a transposed one, over as many axes as the weight has spatial ones."""
    rank = weight.ndim - 2
    if transposed:
        return _conv_transpose(x, weight, bias, rank, stride, padding, output_padding, groups, dilation)
    return _conv(x, weight, bias, rank, stride, padding, dilation, groups)


def _pool_layout(x, size, rank, stride, padding, dilation, ceil_mode):
    """Return window, strides and paddings over all axes; with ceil_mode the last window may extend beyond the end."""
    size = _each(size, rank)
    stride = _each(stride, rank) if stride else size
    padding, dilation = _each(padding, rank), _each(dilation, rank)
    pads = []
    for n, k, s, p, d in zip(x.shape[x.ndim - rank :], size, stride, padding, dilation, strict=True):
        reach = n + 2 * p - d * (k - 1) - 1
        count = (-(-reach // s) if ceil_mode else reach // s) + 1
        if ceil_mode and (count - 1) * s >= n + p:
            count -= 1
        pads.append((p, max(p, (count - 1) * s + d * (k - 1) + 1 - n - p)))
    rest = x.ndim - rank
    return (1,) * rest + size, (1,) * rest + stride, ((0, 0),) * rest + tuple(pads), (1,) * rest + dilation


def _max_pool(x, size, rank=2, stride=None, padding=0, dilation=1, ceil_mode=False):
    """Return the largest element of each window over the last axes."""
    window, strides, pads, dilation = _pool_layout(x, size, rank, stride, padding, dilation, ceil_mode)
    low = -jnp.inf if jnp.issubdtype(x.dtype, jnp.floating) else jnp.iinfo(x.dtype).min
    return jax.lax.reduce_window(x, low, jax.lax.max, window, strides, pads, window_dilation=dilation)


def _max_pool_with_indices(x, size, rank=2, stride=None, padding=0, dilation=1, ceil_mode=False):
    """Return the largest element of each window, and its index in the flattened last axes."""
    window, strides, pads, dilation = _pool_layout(x, size, rank, stride, padding, dilation, ceil_mode)
    spatial = x.shape[x.ndim - rank :]
    places = jnp.broadcast_to(jnp.arange(math.prod(spatial)).reshape(spatial), x.shape)
    padded = jnp.pad(x, pads, constant_values=-jnp.inf)
    places = jnp.pad(places, pads)
    counts = [
        (n - d * (k - 1) - 1) // s + 1 for n, k, s, d in zip(padded.shape, window, strides, dilation, strict=True)
    ]
    values, where = [], []
    for offsets in itertools.product(*(range(k) for k in window)):
        cut = tuple(
            slice(o * d, o * d + (c - 1) * s + 1, s)
            for o, d, c, s in zip(offsets, dilation, counts, strides, strict=True)
        )
        values.append(padded[cut])
        where.append(places[cut])
    values, where = jnp.stack(values), jnp.stack(where)
    best = jnp.argmax(values, axis=0)[None]
    return jnp.take_along_axis(values, best, axis=0)[0], jnp.take_along_axis(where, best, axis=0)[0]


def _max_unpool(x, indices, size, rank=2, stride=None, padding=0, output_size=None):
    """Write the largest elements of windows back to their indices; zeros elsewhere."""
    size, padding = _each(size, rank), _each(padding, rank)
    stride = _each(stride, rank) if stride else size
    leading, spatial = x.shape[: x.ndim - rank], x.shape[x.ndim - rank :]
    if output_size is None:
        parts = zip(spatial, size, stride, padding, strict=True)
        output_size = [(n - 1) * s + k - 2 * p for n, k, s, p in parts]
    shape = (*leading, *output_size[len(output_size) - rank :])
    rows = math.prod(leading)
    found = jnp.zeros((rows, math.prod(shape[len(leading) :])), x.dtype)
    found, x = found.at[jnp.arange(rows)[:, None], indices.reshape(rows, -1)], x.reshape(rows, -1)
    total = found.add(x)  # of which each element has the gradient of its place, as in PyTorch
    return (total + jax.lax.stop_gradient(found.set(x) - total)).reshape(shape)


def _fractional_max_pool(x, size, output_size, output_ratio, rank=2, samples=None, key=None):
    """Return the largest elements of regions that begin at random places (Graham 2014), and their places."""
    single = x.ndim == rank + 1
    x = x[None] if single else x
    size, spatial = _each(size, rank), x.shape[-rank:]
    if output_size is None:
        output_size = [int(n * r) for n, r in zip(spatial, _each(output_ratio, rank), strict=True)]
    output_size = _each(output_size, rank)
    if samples is None:
        samples = jax.random.uniform(key, (*x.shape[:2], rank), x.dtype)
    places = jnp.zeros((*x.shape[:2], 1), int)
    for axis, (n, k, m) in enumerate(zip(spatial, size, output_size, strict=True)):
        u = samples[: x.shape[0], : x.shape[1], axis if rank == 3 else 1 - axis, None]  # of two axes the last is first
        step = (n - k) / (m - 1) if m > 1 else 0.0
        starts = jnp.floor((jnp.arange(m) + u) * step) - jnp.floor(u * step)
        starts = jnp.where(jnp.arange(m) == m - 1, n - k, starts).astype(int)
        window = (starts[..., None] + jnp.arange(k)).reshape(*x.shape[:2], 1, -1)
        places = (places[..., None] * n + window).reshape(*x.shape[:2], -1)
    parts = [n for m, k in zip(output_size, size, strict=True) for n in (m, k)]
    order = (0, 1, *range(2, 2 + 2 * rank, 2), *range(3, 3 + 2 * rank, 2))
    places = places.reshape(*x.shape[:2], *parts).transpose(order).reshape(*x.shape[:2], *output_size, -1)
    found = jnp.take_along_axis(x.reshape(*x.shape[:2], -1), places.reshape(*x.shape[:2], -1), axis=-1).reshape(
        places.shape
    )
    best = jnp.argmax(found, axis=-1, keepdims=True)
    out = jnp.take_along_axis(found, best, axis=-1)[..., 0], jnp.take_along_axis(places, best, axis=-1)[..., 0]
    return tuple(o[0] for o in out) if single else out


def _avg_pool(x, size, rank=2, stride=None, padding=0, ceil_mode=False, count_include_pad=True, divisor_override=None):
    """Return the mean of each window over the last axes."""
    window, strides, pads, _ = _pool_layout(x, size, rank, stride, padding, 1, ceil_mode)

    def total(array, pads):
        return jax.lax.reduce_window(array, np.zeros((), array.dtype), jax.lax.add, window, strides, pads)

    if divisor_override is not None:
        return _quotient(total(x, pads), divisor_override)
    ones = jnp.ones(x.shape[x.ndim - rank :], x.dtype).reshape((1,) * (x.ndim - rank) + x.shape[x.ndim - rank :])
    if count_include_pad:  # the padding counts, but not what a last window reaches beyond it
        own = [(p, p) for p in _each(padding, rank)]
        ones = jnp.pad(ones, [(0, 0)] * (x.ndim - rank) + own, constant_values=1)
        beyond = ((0, 0),) * (x.ndim - rank) + tuple(
            (0, high - p) for (p, _), (_, high) in zip(own, pads[x.ndim - rank :], strict=True)
        )
        return _quotient(total(x, pads), total(ones, beyond))
    return _quotient(total(x, pads), total(ones, pads))


def _lp_pool(x, p, size, rank=2, stride=None, ceil_mode=False):
    """Return the p-norm of each window over the last axes."""
    mean = _avg_pool(x**p, size, rank, stride, ceil_mode=ceil_mode)
    mean = jnp.where(mean == 0, 0, mean)  # there the slope is 0
    return (mean * math.prod(_each(size, rank))) ** (1.0 / p)


def _adaptive_bins(x, output_size, rank):
    """Return for each of the last axes the bounds of its bins."""
    sizes = _each(output_size, rank)
    for axis, size in zip(range(x.ndim - rank, x.ndim), sizes, strict=True):
        n = x.shape[axis]
        bins = n if size is None else size
        yield axis, [((i * n) // bins, -(-(i + 1) * n // bins)) for i in range(bins)]


def _adaptive_avg_pool(x, output_size, rank=2):
    """Return the means of bins over the last axes, as many as output_size says."""
    for axis, bins in _adaptive_bins(x, output_size, rank):
        means = [jnp.mean(jax.lax.slice_in_dim(x, a, b, axis=axis), axis=axis) for a, b in bins]
        x = jnp.stack(means, axis=axis)
    return x


def _adaptive_max_pool(x, output_size, rank=2):
    """Return the largest elements of so many bins over the last axes."""
    for axis, bins in reversed([*_adaptive_bins(x, output_size, rank)]):  # the first of equal elements in their order
        largest = [_max(jax.lax.slice_in_dim(x, a, b, axis=axis), axis)[0] for a, b in bins]
        x = jnp.stack(largest, axis=axis)
    return x


def _adaptive_max_pool_with_indices(x, output_size, rank=2):
    """Return the result of _adaptive_max_pool, and the index of each element in the flattened last axes."""
    places = jnp.broadcast_to(jnp.arange(math.prod(x.shape[-rank:])).reshape(x.shape[-rank:]), x.shape)
    for axis, bins in reversed([*_adaptive_bins(x, output_size, rank)]):
        at = [(_max(jax.lax.slice_in_dim(x, a, b, axis=axis), axis, keepdims=True)[1] + a) for a, b in bins]
        at = jnp.concatenate(at, axis=axis)
        x, places = jnp.take_along_axis(x, at, axis=axis), jnp.take_along_axis(places, at, axis=axis)
    return x, places


def _layer_norm(x, shape, weight=None, bias=None, eps=1e-5):
    """Normalise x over the last axes, of this shape."""
    axes = tuple(range(-1 if isinstance(shape, int) else -len(shape), 0))
    mean, var = jnp.mean(x, axis=axes, keepdims=True), jnp.var(x, axis=axes, keepdims=True)
    out = (x - mean) * jax.lax.rsqrt(var + eps)
    out = out if weight is None else out * weight
    return (out if bias is None else out + bias).astype(x.dtype)


def _native_layer_norm(x, shape, weight=None, bias=None, eps=1e-5):
    """Return the result of _layer_norm, with mean and reciprocal standard deviation."""
    axes = tuple(range(-len(shape), 0))
    mean, var = jnp.mean(x, axis=axes, keepdims=True), jnp.var(x, axis=axes, keepdims=True)
    return _layer_norm(x, shape, weight, bias, eps), mean, jax.lax.rsqrt(var + eps)


def _rms_norm(x, shape, weight=None, eps=None):
    """Divide x by its root mean square over the last axes, of this shape."""
    axes = tuple(range(-1 if isinstance(shape, int) else -len(shape), 0))
    eps = jnp.finfo(x.dtype).eps if eps is None else eps
    out = x * jax.lax.rsqrt(jnp.mean(jnp.square(x), axis=axes, keepdims=True) + eps)
    return (out if weight is None else out * weight).astype(x.dtype)


def _by_channel(x, weight, bias):
    """Scale and shift x with one number for each channel, the second axis."""
    shape = (-1, *(1,) * (x.ndim - 2))
    out = x if weight is None else x * weight.reshape(shape)
    return (out if bias is None else out + bias.reshape(shape)).astype(x.dtype)


def _group_norm(x, groups, weight=None, bias=None, eps=1e-5):
    """Normalise x over groups of channels, for each image."""
    parts = x.reshape(x.shape[0], groups, -1)
    mean, var = jnp.mean(parts, axis=-1, keepdims=True), jnp.var(parts, axis=-1, keepdims=True)
    return _by_channel(((parts - mean) * jax.lax.rsqrt(var + eps)).reshape(x.shape), weight, bias)


def _instance_norm(x, weight=None, bias=None, eps=1e-5):
    """Normalise x over each channel of each image."""
    axes = tuple(range(2, x.ndim))
    mean, var = jnp.mean(x, axis=axes, keepdims=True), jnp.var(x, axis=axes, keepdims=True)
    return _by_channel((x - mean) * jax.lax.rsqrt(var + eps), weight, bias)


def _batch_norm(x, mean=None, var=None, weight=None, bias=None, eps=1e-5):
    """Normalise x over the batch for each channel, with the given statistics or the batch's own."""
    axes = (0, *range(2, x.ndim))
    mean, var = (jnp.mean(x, axis=axes), jnp.var(x, axis=axes)) if mean is None else (mean, var)
    shape = (-1, *(1,) * (x.ndim - 2))
    normal = (x - mean.reshape(shape)) * jax.lax.rsqrt(var.reshape(shape) + eps)
    return _by_channel(normal, weight, bias).astype(x.dtype)


def _local_response_norm(x, size, alpha=1e-4, beta=0.75, k=1.0):
    """Divide x by a power of the mean square over neighbouring channels."""
    square = jnp.pad(jnp.square(x), [(0, 0), (size // 2, (size - 1) // 2)] + [(0, 0)] * (x.ndim - 2))
    window = (1, size, *(1,) * (x.ndim - 2))
    mean = jax.lax.reduce_window(square, 0.0, jax.lax.add, window, (1,) * x.ndim, "VALID") / size
    return x / (k + alpha * mean) ** beta


def _attention(query, key, value, mask=None, dropout_p=0.0, is_causal=False, scale=None, enable_gqa=False):
    """Compute scaled dot-product attention over the last two axes; heads are the axis before them."""
    if dropout_p:
        raise NotImplementedError("scaled_dot_product_attention: dropout_p draws random numbers, and has no key here")
    if enable_gqa:
        key = jnp.repeat(key, query.shape[-3] // key.shape[-3], axis=-3)
        value = jnp.repeat(value, query.shape[-3] // value.shape[-3], axis=-3)
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    scores = query @ key.mT * scale
    if is_causal:
        scores = jnp.where(jnp.tril(jnp.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    if mask is not None:
        scores = jnp.where(mask, scores, -jnp.inf) if mask.dtype == bool else scores + mask
        empty = jnp.all(scores == -jnp.inf, axis=-1, keepdims=True)  # rows without any weight
        return jnp.where(empty, 0, jax.nn.softmax(jnp.where(empty, 0, scores), axis=-1)) @ value
    return jax.nn.softmax(scores, axis=-1) @ value
