# What ported code carries has no types.
# mypy: ignore-errors
"""Functions that ported code carries: polynomials, windows, transforms back from windows."""

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
    """Half a period of the sine, between the places of its zeros."""
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
