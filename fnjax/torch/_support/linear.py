# What ported code carries has no types.
# mypy: ignore-errors
"""Functions that ported code carries: matrices and distances."""

import math

import jax
import jax.numpy as jnp

from fnjax.torch._support.derivatives import _norm


def _logdet(x):
    """The logarithm of the determinant; NaN where that is negative."""
    sign, logarithm = jnp.linalg.slogdet(x)
    return jnp.where(sign < 0, jnp.nan, logarithm)


def _solve(a, b):
    """The solution of a x = b; b may be a batch of vectors, as in PyTorch."""
    if b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1]):
        return jnp.linalg.solve(a, b[..., None])[..., 0]
    return jnp.linalg.solve(a, b)


def _cholesky_inverse(factor, lower):
    """The inverse of the matrices of which these are Cholesky factors."""
    identity = jnp.broadcast_to(jnp.eye(factor.shape[-1], dtype=factor.dtype), factor.shape)
    return jax.scipy.linalg.cho_solve((factor, lower), identity)


def _matrices(a, b):
    """The right side with as many axes as a: jax.scipy takes it for matrices, not for a batch of vectors."""
    return b.reshape((1,) * (a.ndim - b.ndim) + b.shape)


def _triangular_solve(b, a, **options):
    """The solution of a x = b, and a for each of its matrices."""
    x = jax.scipy.linalg.solve_triangular(a, _matrices(a, b), **options)
    return x, jnp.broadcast_to(a, (*x.shape[:-2], *a.shape[-2:]))


def _lu(x):
    """jax.scipy.linalg.lu of each matrix."""
    return jnp.vectorize(jax.scipy.linalg.lu, signature="(m,n)->(m,m),(m,k),(k,n)")(x)


def _lstsq(a, b, rcond=None):
    """Least squares in PyTorch's form: solution, residuals, rank, singular values; like its driver gelsy without two of them."""
    solution = jnp.linalg.pinv(a, rtol=rcond) @ b
    nothing = jnp.zeros(0, solution.dtype)
    return solution, nothing, jnp.linalg.matrix_rank(a, rtol=rcond), nothing


def _svd(x, full_matrices=False):
    """Singular values with V itself, not its conjugate transpose."""
    u, s, vh = jnp.linalg.svd(x, full_matrices=full_matrices)
    return u, s, jnp.conj(vh.mT)


def _with_info(factor):
    """Cholesky's factor, and 0 for each matrix, or 1 where there is none: JAX's entries are not finite then."""
    return factor, 1 - jnp.isfinite(factor).all((-2, -1)).astype(jnp.int32)


def _zero_pivot(x):
    """Counted from 1, the first pivot of each matrix that is 0, or 0 where none is: what PyTorch calls info."""
    zero = jnp.diagonal(jax.scipy.linalg.lu_factor(x)[0], axis1=-2, axis2=-1) == 0
    return jnp.where(zero.any(-1), zero.argmax(-1) + 1, 0).astype(jnp.int32)


def _lu_factor(x):
    """Both factors in one matrix, and pivots that count from 1."""
    factors, pivots = jax.scipy.linalg.lu_factor(x)
    return factors, pivots + 1


def _lu_unpack(factors, pivots):
    """The permutation and the two factors that stand in one matrix."""
    rows, rank = factors.shape[-2], min(factors.shape[-2:])
    order = jax.lax.linalg.lu_pivots_to_permutation(pivots - 1, rows)
    permutation = jax.nn.one_hot(order, rows, dtype=factors.dtype).mT
    lower = jnp.tril(factors[..., :rank], -1) + jnp.eye(rows, rank, dtype=factors.dtype)
    return permutation, lower, jnp.triu(factors[..., :rank, :])


def _cdist(x, y, p=2.0):
    """Distances between all rows of one and of the other."""
    return _norm(x[..., :, None, :] - y[..., None, :, :], axis=-1, ord=p)


def _pdist(x, p=2.0):
    """Distances between all pairs of rows."""
    rows, columns = jnp.triu_indices(x.shape[0], 1)
    return _norm(x[rows] - x[columns], axis=-1, ord=p)


def _cosine_similarity(x, y, axis=1, eps=1e-8):
    """The cosine of the angle between vectors along an axis."""
    norms = [jnp.maximum(_norm(v, axis=axis, keepdims=True), eps) for v in (x, y)]
    return jnp.sum((x / norms[0]) * (y / norms[1]), axis=axis)


def _normalize(x, p=2.0, axis=1, eps=1e-12):
    """Vectors along an axis, scaled to norm 1."""
    return x / jnp.maximum(_norm(x, ord=p, axis=axis, keepdims=True), eps)


def _stft(
    x, n_fft, hop=None, width=None, window=None, center=True, pad_mode="reflect", normalized=False, onesided=None
):
    """The Fourier transforms of windows of the last axis: (..., frequencies, windows)."""
    hop, width = n_fft // 4 if hop is None else hop, n_fft if width is None else width
    window = jnp.ones(width, x.real.dtype) if window is None else window
    left = (n_fft - width) // 2
    window = jnp.pad(window, (left, n_fft - width - left))
    if center:
        mode = {"replicate": "edge", "circular": "wrap"}.get(pad_mode, pad_mode)
        x = jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(n_fft // 2, n_fft // 2)], mode=mode)
    starts = jnp.arange(0, x.shape[-1] - n_fft + 1, hop)
    frames = x[..., starts[:, None] + jnp.arange(n_fft)] * window
    real = not jnp.iscomplexobj(frames)
    found = jnp.fft.rfft(frames) if (real if onesided is None else onesided) else jnp.fft.fft(frames)
    return jnp.swapaxes(found / math.sqrt(n_fft) if normalized else found, -1, -2)
