# Ported code has no types.
# mypy: ignore-errors
"""Functions that expressions of the table call, and that ports copy: polynomials, Bessel and Airy functions, windows, transforms back from windows."""

import jax
import jax.numpy as jnp


def _polynomial(x, n, first, step):
    """Evaluate orthogonal polynomials of degree n by recurrence: p(k + 1) = step(k, p(k), p(k - 1)), p(0) = 1."""
    x, n = jnp.broadcast_arrays(x, jnp.trunc(n).astype(int))

    def advance(state):
        k, last, here, found = state
        last, here = here, step(k.astype(x.dtype), here, last)
        return k + 1, last, here, jnp.where(n == k + 1, here, found)

    start = (jnp.ones((), int), jnp.ones_like(x), first, jnp.where(n == 1, first, (n == 0).astype(x.dtype)))
    return jax.lax.while_loop(lambda state: state[0] < jnp.max(n, initial=0), advance, start)[3]


def _chebyshev(x, n, kind):
    """Evaluate Chebyshev's polynomials of degree n; kind is t, u, v or w."""
    first = jnp.broadcast_to(
        {"t": x, "u": 2 * x, "v": 2 * x - 1, "w": 2 * x + 1}[kind], jnp.broadcast_shapes(x.shape, jnp.shape(n))
    )
    return _polynomial(x, n, first, lambda k, here, last: 2 * x * here - last)


def _hermite(x, n, scale):
    """Evaluate Hermite's polynomials of degree n: the physicists' for scale 2, the probabilists' for 1."""
    first = jnp.broadcast_to(scale * x, jnp.broadcast_shapes(x.shape, jnp.shape(n)))
    return _polynomial(x, n, first, lambda k, here, last: scale * (x * here - k * last))


def _laguerre(x, n):
    """Evaluate Laguerre's polynomials of degree n."""
    first = jnp.broadcast_to(1 - x, jnp.broadcast_shapes(x.shape, jnp.shape(n)))
    return _polynomial(x, n, first, lambda k, here, last: ((2 * k + 1 - x) * here - k * last) / (k + 1))


def _legendre(x, n):
    """Evaluate Legendre's polynomials of degree n."""
    first = jnp.broadcast_to(x, jnp.broadcast_shapes(x.shape, jnp.shape(n)))
    return _polynomial(x, n, first, lambda k, here, last: ((2 * k + 1) * x * here - k * last) / (k + 1))


def _bessel(x, kind, order=0):
    """Return the Bessel function of the first kind (j) or the second (y), of order 0 or 1.

    Below 25 it is the mean of Bessel's integral over points (DLMF 10.9.1), with Neumann's expansion of y in even orders
    (10.8.3 and 10.23.17) summed in the points' weights; above, Hankel's expansion (10.17.5). Order 1 is minus the derivative of
    order 0 (10.6.3).
    """
    size = jnp.abs(x) if kind == "j" else x
    if order:
        found = 0 - jax.jvp(lambda a: _bessel(a, kind), (size,), (jnp.ones_like(x),))[1]
        other = -found if kind == "j" else jnp.where(x == 0, -jnp.inf, jnp.nan)
        return jnp.where(x < 0 if kind == "j" else x <= 0, other, found)
    near, far = jnp.where((size >= 0) & (size < 25), size, 25), jnp.where(size < 25, 25, size)
    angles = (jnp.arange(32, dtype=x.dtype) + 0.5) * (jnp.pi / 64)
    waves = jnp.cos(near[..., None] * jnp.sin(angles))
    inner = jnp.mean(waves, axis=-1)
    if kind == "y":
        k = jnp.arange(1, 32, dtype=x.dtype)
        weights = jnp.sum((-1) ** k / k * jnp.cos(2 * k * angles[:, None]), axis=1)
        inner = 2 * inner * (jnp.log(near / 2) + 0.5772156649015329) - 4 * jnp.mean(waves * weights, axis=-1)
        inner = jnp.where(x < 0, jnp.nan, inner / jnp.pi)
    total = term = jax.lax.complex(jnp.ones_like(x), jnp.zeros_like(x))
    for k in range(1, 24):
        term = term * jax.lax.complex(jnp.zeros_like(x), -((2 * k - 1) ** 2) / (8 * k * far))
        total = total + term
    wave = jax.lax.complex(jnp.cos(far) + jnp.sin(far), jnp.sin(far) - jnp.cos(far)) * total
    return jnp.where(size < 25, inner, (wave.real if kind == "j" else wave.imag) / jnp.sqrt(jnp.pi * far))


def _scaled_bessel_k(x, order=0):
    """Return the modified Bessel function of the second kind, of order 0 or 1, times exp(x).

    Below 2 it is the power series (DLMF 10.31.2), above the integral 10.32.9 by the trapezoidal rule; order 1 is minus the
    derivative of order 0 (10.29.3).
    """
    if order:
        found, slope = jax.jvp(_scaled_bessel_k, (x,), (jnp.ones_like(x),))
        found = found - slope
    else:
        near, far = jnp.where(x < 2, x, 2), jnp.where(x < 2, 2, x)
        factor, harmonic, series = jnp.ones_like(x), 0.0, 0.0
        logarithm = -jnp.log(near / 2) - 0.5772156649015329
        for k in range(13):
            series = series + factor * (logarithm + harmonic)
            factor, harmonic = factor * jnp.square(near / 2 / (k + 1)), harmonic + 1 / (k + 1)
        step = jax.lax.stop_gradient(jnp.arcsinh(jnp.sqrt(20 / far)) / 8)  # to where the integrand is exp(-40)
        places = jnp.square(jnp.sinh(step[..., None] * jnp.arange(17, dtype=x.dtype) / 2))
        waves = jnp.exp(-2 * far[..., None] * places)
        found = jnp.where(x < 2, jnp.exp(near) * series, step * (jnp.sum(waves, axis=-1) - 0.5))
    found = jnp.where(x < jnp.inf, found, 0)
    return jnp.where(x > 0, found, jnp.where(x == 0, jnp.inf, jnp.nan))


def _airy(x):
    """Return the Airy function Ai by the trapezoidal rule on its contour integral (DLMF 9.5.4).

    Above -1 the contour is parallel to the real axis, through the saddle point where that is above 1; below -1 it is the path of
    steepest descent through the saddle point.
    """
    right, left = jnp.maximum(x, -1), jnp.maximum(-x, 1)
    height = jnp.sqrt(jnp.maximum(right, 1))
    step = jax.lax.stop_gradient(jnp.sqrt(40 / height) / 32)
    place = step[..., None] * jnp.arange(33, dtype=x.dtype)
    turns = jnp.cos(place**3 / 3 + (right - height**2)[..., None] * place)
    total = jnp.sum(jnp.exp(-height[..., None] * place**2) * turns, axis=-1) - 0.5
    decaying = jnp.exp(height**3 / 3 - right * height) * step * total / jnp.pi

    scale = left**1.5
    reach = jax.lax.stop_gradient(jnp.sqrt(40 / scale))
    first, last = jnp.maximum(-1.3 * reach, -3.5), jnp.minimum(reach, 1.6)
    step = (last - first) / 64
    real = jnp.exp(first[..., None] + step[..., None] * jnp.arange(65, dtype=x.dtype))
    root = jnp.sqrt((real + 2) / (3 * real))
    imaginary = (real - 1) * root
    slope = real * root - (real - 1) / (3 * real * root)
    heights = jnp.exp(-scale[..., None] * (real**2 * imaginary - imaginary**3 / 3 - imaginary))
    phase = 2 / 3 * scale
    sums = [step * jnp.sqrt(left) * jnp.sum(heights * s, axis=-1) for s in (real, slope)]
    waving = (sums[0] * jnp.cos(phase) + sums[1] * jnp.sin(phase)) / jnp.pi
    found = jnp.where(x < -1, waving, decaying)
    return jnp.where(jnp.isinf(x), jnp.nan, found)


def _window(size, sym, function):
    """Evaluate a window function at positions from 0 to 1; the periodic form omits the last."""
    if size < 2:
        return jnp.ones(size)
    return function(jnp.arange(size) / (size - 1 if sym else size))


def _cosine_sum(size, factors, sym=True):
    """Return a sum of cosines with these factors, as a window."""

    def sum_up(place):
        return sum((-1) ** k * a * jnp.cos(2 * jnp.pi * k * place) for k, a in enumerate(factors))

    return _window(size, sym, sum_up)


def _sine_window(size, sym=True):
    """Return a window that is half a period of the sine; its zeros are half a step outside of it."""
    if size < 2:
        return jnp.ones(size)
    return jnp.sin(jnp.pi / (size if sym else size + 1) * (jnp.arange(size) + 0.5))


def _places(size, sym, center=None):
    """Return the distances of a window's elements from its center."""
    return jnp.arange(size) - ((size - 1 if sym or size < 2 else size) / 2 if center is None else center)


def _istft(x, n_fft, hop=None, width=None, window=None, center=True, normalized=False, length=None, cplx=False):
    """Return the signal with these Fourier transforms of windows: (..., frequencies, windows)."""
    hop, width = n_fft // 4 if hop is None else hop, n_fft if width is None else width
    window = jnp.ones(width, x.real.dtype) if window is None else window
    left = (n_fft - width) // 2
    window = jnp.pad(window, (left, n_fft - width - left))
    x = jnp.swapaxes(x, -1, -2) * (n_fft**0.5 if normalized else 1)
    frames = (jnp.fft.ifft(x) if cplx else jnp.fft.irfft(x[..., : n_fft // 2 + 1], n_fft)) * window
    count = frames.shape[-2]
    place = (jnp.arange(count)[:, None] * hop + jnp.arange(n_fft)).ravel()
    total = n_fft + hop * (count - 1)
    signal = jnp.zeros((*x.shape[:-2], total), frames.dtype).at[..., place].add(frames.reshape(*x.shape[:-2], -1))
    weight = jnp.zeros(total, window.dtype).at[place].add(jnp.tile(jnp.square(window), count))
    start = n_fft // 2 if center else 0
    end = total - (n_fft // 2 if center else 0) if length is None else start + length
    found = signal[..., start:end] / weight[start:end]
    return found if length is None else jnp.pad(found, [(0, 0)] * (x.ndim - 2) + [(0, length - found.shape[-1])])


def _ctc_loss(logp, targets, steps, lengths, blank=0, reduction="mean", zero_infinity=False):
    """Return the loss of connectionist temporal classification; logp is (time, batch, classes)."""
    single = logp.ndim == 2
    logp = logp[:, None] if single else logp
    steps, lengths = (jnp.atleast_1d(jnp.asarray(n)) for n in (steps, lengths))
    batch, longest = logp.shape[1], targets.shape[-1]
    if targets.ndim == 1:  # one after another
        first = jnp.concatenate([jnp.zeros(1, lengths.dtype), jnp.cumsum(lengths)[:-1]])
        targets = targets[jnp.minimum(first[:, None] + jnp.arange(longest), max(longest - 1, 0))]
    labels = jnp.full((batch, 2 * longest + 1), blank).at[:, 1::2].set(targets)
    two_back = jnp.pad(labels, ((0, 0), (2, 0)), constant_values=blank)[:, :-2]
    skips = (labels != blank) & (labels != two_back) & (jnp.arange(labels.shape[1]) >= 2)
    lowest = jnp.finfo(logp.dtype).min / 4  # of which sums stay finite, so that derivatives do
    emitted = jnp.take_along_axis(logp, labels[None], axis=2)
    emitted = jnp.maximum(emitted, lowest)

    def advance(alpha, given):
        emit, t = given
        back = [jnp.pad(alpha, ((0, 0), (k, 0)), constant_values=lowest)[:, : alpha.shape[1]] for k in (1, 2)]
        paths = jnp.stack([alpha, back[0], jnp.where(skips, back[1], lowest)])
        moved = jnp.maximum(jax.nn.logsumexp(paths, axis=0) + emit, lowest)
        return jnp.where((t < steps)[:, None], moved, alpha), None

    start = jnp.where(jnp.arange(labels.shape[1]) < 2, emitted[0], lowest)
    alpha, _ = jax.lax.scan(advance, start, (emitted[1:], jnp.arange(1, logp.shape[0])))
    last = jnp.take_along_axis(alpha, 2 * lengths[:, None], axis=1)[:, 0]
    before = jnp.take_along_axis(alpha, jnp.maximum(2 * lengths[:, None] - 1, 0), axis=1)[:, 0]
    loss = -jnp.logaddexp(last, jnp.where(lengths > 0, before, lowest))
    given = jnp.where(jnp.arange(logp.shape[0])[:, None] < steps, jnp.sum(jnp.exp(logp), axis=2), 0)
    total = jnp.sum(given, axis=0)
    loss = loss + total - jax.lax.stop_gradient(total)  # PyTorch's gradient is that of the logits behind logp
    loss = jnp.where(loss > -lowest / 2, 0 if zero_infinity else jnp.inf, loss)
    if reduction == "none":
        return loss[0] if single else loss
    return jnp.sum(loss) if reduction == "sum" else jnp.mean(loss / jnp.maximum(lengths, 1))
