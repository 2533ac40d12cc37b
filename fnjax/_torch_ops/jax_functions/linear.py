# Ported code has no types.
# mypy: ignore-errors
"""Functions that expressions of the table call, and that ports copy: matrices and distances."""

import math

import jax
import jax.numpy as jnp

from fnjax._torch_ops.jax_functions.derivatives import _norm
from fnjax._torch_ops.jax_functions.rounding import _quotient


def _geqrf(x):
    """Return the QR decomposition as LAPACK has it: reflectors below the diagonal of R, and their scales."""
    reflectors, scales = jnp.linalg.qr(x, mode="raw")
    return reflectors.mT, scales


def _ormqr(x, tau, other, left=True, transpose=False):
    """Multiply matrices by the square one that reflectors make."""
    rest = other.shape[-2 if left else -1] - x.shape[-1]
    q = _householder(jnp.pad(x, [(0, 0)] * (x.ndim - 1) + [(0, rest)]), tau)
    q = q.mT.conj() if transpose else q
    return q @ other if left else other @ q


def _logdet(x):
    """Return the logarithm of the determinant; NaN where that is negative."""
    sign, logarithm = jnp.linalg.slogdet(x)
    if jnp.iscomplexobj(x):
        return logarithm + jnp.log(sign)
    return jnp.where(sign < 0, jnp.nan, logarithm)


def _solve(a, b):
    """Return the solution of a x = b; b may be a batch of vectors, as in PyTorch."""
    if b.ndim == 1 or (a.ndim - 1 == b.ndim and b.shape == a.shape[:-1]):
        return jnp.linalg.solve(a, b[..., None])[..., 0]
    return jnp.linalg.solve(a, b)


def _hermitian(x, upper=False):
    """Return matrices of one triangle and its mirror; the gradient is symmetric, as PyTorch's."""
    half = jnp.triu(x, 1) if upper else jnp.tril(x, -1)
    diagonal = jnp.einsum("...ii->...i", x).real
    whole = half + half.mT.conj() + diagonal[..., None] * jnp.eye(x.shape[-1], dtype=x.dtype)
    mean = (x + x.mT.conj()) / 2
    return mean + jax.lax.stop_gradient(whole - mean)


def _cholesky_inverse(factor, lower):
    """Return the inverse of the matrices with these Cholesky factors."""
    identity = jnp.broadcast_to(jnp.eye(factor.shape[-1], dtype=factor.dtype), factor.shape)
    return jax.scipy.linalg.cho_solve((factor, lower), identity)


def _matrices(a, b):
    """Return the right side with as many axes as a: jax.scipy takes matrices, not a batch of vectors."""
    return b.reshape((1,) * (a.ndim - b.ndim) + b.shape)


def _triangular_solve(b, a, **options):
    """Return the solution of a x = b, and a broadcast to its matrices."""
    x = jax.scipy.linalg.solve_triangular(a, _matrices(a, b), **options)
    return x, jnp.broadcast_to(a, (*x.shape[:-2], *a.shape[-2:]))


def _tolerance(x, largest, atol, rtol):
    """Return the size up to which singular values count as zero."""
    if rtol is None:
        rtol = max(x.shape[-2:]) * jnp.finfo(x.dtype).eps
        rtol = rtol if atol is None else jnp.where(jnp.asarray(atol) > 0, 0, rtol)
    return jnp.maximum(0 if atol is None else atol, rtol * largest)


def _matrix_rank(x, atol=None, rtol=None, hermitian=False):
    """Return the number of singular values above a tolerance."""
    if not x.size:
        return jnp.zeros(x.shape[:-2], int)
    sizes = jnp.abs(jnp.linalg.eigvalsh(_hermitian(x))) if hermitian else jnp.linalg.svd(x, compute_uv=False)
    return jnp.sum(sizes > _tolerance(x, jnp.max(sizes, axis=-1), atol, rtol)[..., None], axis=-1)


def _pinv(x, atol=None, rtol=None, hermitian=False):
    """Return the pseudo-inverse, without the singular values up to a tolerance."""
    if not x.size:
        return jnp.zeros((*x.shape[:-2], x.shape[-1], x.shape[-2]), x.dtype)
    x = _hermitian(x) if hermitian else x
    largest = jnp.linalg.norm(jax.lax.stop_gradient(x), ord=2, axis=(-2, -1))
    share = _tolerance(x, largest, atol, rtol) / jnp.where(largest == 0, 1, largest)
    return jnp.linalg.pinv(x, rtol=share, hermitian=hermitian)


def _householder(x, scales):
    """Return the product of Householder reflections, whose vectors are below the diagonal."""
    vectors = jnp.tril(x, -1) + jnp.eye(*x.shape[-2:], dtype=x.dtype)
    start = jnp.broadcast_to(jnp.eye(*x.shape[-2:], dtype=x.dtype), x.shape)

    def reflect(q, given):
        v, scale = given[0][..., None], given[1][..., None, None]
        return q - scale * v * (v.mT.conj() @ q), None

    given = jnp.moveaxis(vectors, -1, 0)[: scales.shape[-1]], jnp.moveaxis(scales, -1, 0)
    return jax.lax.scan(reflect, start, given, reverse=True)[0]


def _vander(x, count=None):
    """Return powers of each element of the last axis, from the first on."""
    x = jnp.atleast_1d(x)
    count = x.shape[-1] if count is None else count
    powers = jnp.broadcast_to(x[..., None], (*x.shape, max(count - 1, 0)))
    return jnp.cumprod(jnp.concatenate([jnp.ones_like(x)[..., None], powers], axis=-1), axis=-1)[..., :count]


def _lu(x):
    """Apply jax.scipy.linalg.lu to each matrix."""
    return jnp.vectorize(jax.scipy.linalg.lu, signature="(m,n)->(m,m),(m,k),(k,n)")(x)


def _lstsq(a, b, rcond=None, driver="gelsy"):
    """Solve least squares; return solution, residuals, rank, singular values, as far as the driver gives them."""
    solution = jnp.linalg.pinv(a, rtol=rcond) @ b
    nothing = jnp.zeros(0, solution.real.dtype)
    residuals = nothing
    if a.shape[-2] > a.shape[-1] and driver != "gelsy":
        residuals = jnp.sum(jnp.square(jnp.abs(a @ solution - b)), axis=-2)
    rank = jnp.zeros(0, int) if driver == "gels" else jnp.linalg.matrix_rank(a, rtol=rcond)
    sizes = jnp.linalg.svd(a, compute_uv=False) if driver in {"gelsd", "gelss"} else nothing
    return solution, residuals, rank, sizes


def _tensorsolve(a, b, axes):
    """Solve a tensor equation, in which these axes of a come last."""
    a = jnp.moveaxis(a, axes, range(a.ndim - len(axes), a.ndim))
    return jnp.linalg.solve(a.reshape(b.size, b.size), b.ravel()).reshape(a.shape[b.ndim :])


def _svd(x, full_matrices=False):
    """Return the singular value decomposition with V itself, not its conjugate transpose."""
    u, s, vh = jnp.linalg.svd(x, full_matrices=full_matrices)
    return u, s, jnp.conj(vh.mT)


def _with_info(factor):
    """Return the Cholesky factor, and for each matrix 0, or 1 where there is none: JAX's is not finite then."""
    return factor, 1 - jnp.isfinite(factor).all((-2, -1)).astype(jnp.int32)


def _zero_pivot(x):
    """Return the index, from 1, of the first zero pivot of each matrix, or 0 without one: PyTorch's info."""
    if not x.size:
        return jnp.zeros(x.shape[:-2], jnp.int32)
    zero = jnp.diagonal(jax.scipy.linalg.lu_factor(x)[0], axis1=-2, axis2=-1) == 0
    return jnp.where(zero.any(-1), zero.argmax(-1) + 1, 0).astype(jnp.int32)


def _lu_factor(x):
    """Return both factors in one matrix, and pivots that count from 1."""
    factors, pivots = jax.scipy.linalg.lu_factor(x)
    return factors, pivots + 1


def _lu_unpack(factors, pivots):
    """Return the permutation and the two factors that one matrix contains."""
    rows, rank = factors.shape[-2], min(factors.shape[-2:])
    order = jax.lax.linalg.lu_pivots_to_permutation(pivots - 1, rows)
    permutation = jax.nn.one_hot(order, rows, dtype=factors.dtype).mT
    lower = jnp.tril(factors[..., :rank], -1) + jnp.eye(rows, rank, dtype=factors.dtype)
    return permutation, lower, jnp.triu(factors[..., :rank, :])


def _cdist(x, y, p=2.0):
    """Return the distances between all rows of one and of the other."""
    return _norm(x[..., :, None, :] - y[..., None, :, :], axis=-1, ord=p)


def _pdist(x, p=2.0):
    """Return the distances between all pairs of rows."""
    rows, columns = jnp.triu_indices(x.shape[0], 1)
    return _norm(x[rows] - x[columns], axis=-1, ord=p)


def _cosine_similarity(x, y, axis=1, eps=1e-8):
    """Return the cosine of the angle between vectors along an axis."""
    norms = [jnp.maximum(_norm(v, axis=axis, keepdims=True), eps) for v in (x, y)]
    return jnp.sum(_quotient(x, norms[0]) * _quotient(y, norms[1]), axis=axis)


def _normalize(x, p=2.0, axis=1, eps=1e-12):
    """Scale vectors along an axis to norm 1."""
    return _quotient(x, jnp.maximum(_norm(x, ord=p, axis=axis, keepdims=True), eps))


def _stft(
    x, n_fft, hop=None, width=None, window=None, center=True, pad_mode="reflect", normalized=False, onesided=None
):
    """Return the Fourier transforms of windows of the last axis: (..., frequencies, windows)."""
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
