# Ported code has no types.
# mypy: ignore-errors
"""Functions that expressions of the table call, and that ports copy: images padded, parted, resized and read at places."""

import itertools
import math

import jax
import jax.numpy as jnp
import numpy as np

from fnjax._torch_ops.jax_functions.layers import _adaptive_avg_pool, _each


def _pad(x, pad, mode="constant", value=None):
    """Pad from the last axis backwards, as in torch.nn.functional; negative widths crop."""
    pairs = [(0, 0)] * (x.ndim - len(pad) // 2) + [(pad[i], pad[i + 1]) for i in range(len(pad) - 2, -1, -2)]
    if mode == "constant":
        return jax.lax.pad(x, jnp.array(0 if value is None else value, x.dtype), [(a, b, 0) for a, b in pairs])
    wide = [(max(a, 0), max(b, 0)) for a, b in pairs]
    x = jnp.pad(x, wide, mode={"reflect": "reflect", "replicate": "edge", "circular": "wrap"}[mode])
    if wide == pairs:
        return x
    return x[tuple(slice(max(-a, 0), n - max(-b, 0)) for (a, b), n in zip(pairs, x.shape, strict=True))]


def _patches(x, size, dilation, padding, stride):
    """Return patches of images, (batch, channels, h, w), as (batch, channels, kh, kw, oh, ow)."""
    size, dilation, padding, stride = (_each(v, 2) for v in (size, dilation, padding, stride))
    x = jnp.pad(x, ((0, 0), (0, 0), (padding[0],) * 2, (padding[1],) * 2))
    counts = [(n - d * (k - 1) - 1) // s + 1 for n, k, d, s in zip(x.shape[2:], size, dilation, stride, strict=True)]
    rows, columns = (
        jnp.arange(k)[:, None] * d + jnp.arange(c) * s
        for k, d, c, s in zip(size, dilation, counts, stride, strict=True)
    )
    return x[:, :, rows[:, None, :, None], columns[None, :, None, :]]


def _unfold(x, size, dilation=1, padding=0, stride=1):
    """Return patches as columns: (batch, channels * kernel, patches)."""
    single = x.ndim == 3
    found = _patches(x[None] if single else x, size, dilation, padding, stride)
    n, c, kh, kw, oh, ow = found.shape
    found = found.reshape(n, c * kh * kw, oh * ow)
    return found[0] if single else found


def _fold(x, output_size, size, dilation=1, padding=0, stride=1):
    """Sum patches back into images: the transpose of unfold."""
    single = x.ndim == 2
    x = x[None] if single else x
    kernel = math.prod(_each(size, 2))
    like = jnp.zeros((x.shape[0], x.shape[1] // kernel, *_each(output_size, 2)), x.dtype)
    _, pullback = jax.vjp(lambda image: _unfold(image, size, dilation, padding, stride), like)
    return pullback(x)[0][0] if single else pullback(x)[0]


def _resized(x, axis, size, scale, mode, align_corners):
    """Resize one axis."""
    n = x.shape[axis]
    ratio = n / size if scale is None else 1 / scale
    out = np.arange(size)
    if mode in {"nearest", "nearest-exact"}:
        start = 0.5 if mode == "nearest-exact" else 0.0
        return jnp.take(x, np.minimum(np.floor((out + start) * np.float32(ratio)).astype(int), n - 1), axis=axis)
    corners = out * ((n - 1) / (size - 1) if size > 1 else 0.0)
    place = corners if align_corners else (out + 0.5) * ratio - 0.5
    shape = [size if i == axis else 1 for i in range(x.ndim)]

    def taken(index, weight):
        return jnp.take(x, np.clip(index, 0, n - 1), axis=axis) * jnp.asarray(weight.reshape(shape), x.dtype)

    if mode == "cubic":
        low = np.floor(place).astype(int)
        t = place - low
        return sum(taken(low + k - 1, w) for k, w in enumerate(_cubic_weights(t)))
    place = np.maximum(place, 0.0)
    low = np.minimum(np.floor(place).astype(int), n - 1)
    t = place - low
    return taken(low, 1 - t) + taken(low + 1, t)


def _interpolate(x, size=None, scale_factor=None, mode="nearest", align_corners=None, recompute=None):
    """Resize the spatial axes, as in torch.nn.functional."""
    rank = x.ndim - 2
    if size is None:
        scales = _each(scale_factor, rank)
        sizes = [math.floor(n * s) for n, s in zip(x.shape[2:], scales, strict=True)]
    else:
        scales, sizes = (None,) * rank, _each(size, rank)
    if mode == "area":
        return _adaptive_avg_pool(x, sizes, rank)
    kind = mode if mode.startswith("nearest") else "cubic" if mode == "bicubic" else "linear"
    for axis in range(rank):
        x = _resized(x, axis + 2, sizes[axis], None if recompute else scales[axis], kind, bool(align_corners))
    return x


def _grid_sample(x, grid, mode="bilinear", padding_mode="zeros", align_corners=None):
    """Sample images (n, c, h, w), or volumes, at the positions (n, oh, ow, 2) of a grid from -1 to 1."""
    sizes = x.shape[2:]

    def place(coordinate, n):
        return (coordinate + 1) / 2 * (n - 1) if align_corners else ((coordinate + 1) * n - 1) / 2

    def bounded(at, n):
        if padding_mode == "reflection":
            low, span = (0, n - 1) if align_corners else (-0.5, n)
            at = jnp.where(at < low, low - at, at - low) if span else jnp.zeros_like(at)
            at = low + (jnp.where(at // span % 2 == 0, at % span, span - at % span) if span else at)
        return at if padding_mode == "zeros" else jnp.where(at <= 0, 0, jnp.where(at >= n - 1, n - 1, at))

    def read(places):
        inside = jnp.all(jnp.stack([(at >= 0) & (at < n) for at, n in zip(places, sizes, strict=True)]), axis=0)
        places = [jnp.clip(at, 0, n - 1).astype(int) for at, n in zip(places, sizes, strict=True)]
        found = jax.vmap(lambda image, *at: image[(slice(None), *at)])(x, *places)
        return jnp.where(inside[:, None], found, 0)

    places = [place(grid[..., -1 - axis], n) for axis, n in enumerate(sizes)]
    if mode == "bicubic":
        steps = []
        for at, n in zip(places, sizes, strict=True):
            low = jnp.floor(at)
            steps.append([(bounded(low + k - 1, n), w) for k, w in enumerate(_cubic_weights(at - low))])
    else:
        places = [bounded(at, n) for at, n in zip(places, sizes, strict=True)]
        if mode == "nearest":
            return read([jnp.round(at) for at in places])
        steps = [[(jnp.floor(at), 1 - (at - jnp.floor(at))), (jnp.floor(at) + 1, at - jnp.floor(at))] for at in places]
    corners = itertools.product(*steps)
    return sum(read([at for at, _ in corner]) * math.prod(w for _, w in corner)[:, None] for corner in corners)


def _cubic_weights(t):
    """Return the weights of the four elements around a position at distance t after the second."""
    a = -0.75

    def near(d):
        return ((a + 2) * d - (a + 3)) * d * d + 1

    def far(d):
        return ((a * d - 5 * a) * d + 8 * a) * d - 4 * a

    return far(t + 1), near(t), near(1 - t), far(2 - t)


def _affine_grid(theta, size, align_corners=None):
    """Return the sampling grid of affine maps, (n, 2, 3) or (n, 3, 4), for images of this size."""

    def places(n):
        places = jnp.linspace(-1, 1, n, dtype=theta.dtype) if n > 1 else jnp.zeros(1, theta.dtype)
        return places if align_corners else places * (n - 1) / n

    axes = jnp.meshgrid(*(places(n) for n in size[2:]), indexing="ij")
    base = jnp.stack([*reversed(axes), jnp.ones_like(axes[0])], axis=-1)
    return jnp.einsum("...j,nij->n...i", base, theta)
