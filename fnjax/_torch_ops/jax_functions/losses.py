# Ported code has no types.
# mypy: ignore-errors
"""Functions that expressions of the table call, and that ports copy: losses."""

import math

import jax
import jax.numpy as jnp


def _reduced(loss, reduction):
    """Return the mean or the sum of a loss's elements, or the elements unchanged."""
    return loss if reduction == "none" else {"mean": jnp.mean, "sum": jnp.sum}[reduction](loss)


def _huber(difference, delta):
    """Return a loss that is quadratic near zero, linear from delta on."""
    size = jnp.abs(difference)
    near = jnp.where(size >= delta, 0, difference)  # the gradient at infinity is finite
    return jnp.where(size < delta, 0.5 * jnp.square(near), delta * (size - 0.5 * delta))


def _smooth_l1(difference, beta):
    """Return a loss that is quadratic near zero, linear with slope 1 from beta on; at zero the slope is 0."""
    size = jnp.where(difference == 0, 0, jnp.abs(difference))
    near = jnp.where(size >= beta, 0, difference)  # the gradient at infinity is finite
    return jnp.where(size < beta, 0.5 * jnp.square(near) / beta, size - 0.5 * beta) if beta else size


def _mean_of_kept(loss, weights, kept):
    """Return the weighted mean; NaN with gradient 0 if no element is kept."""
    some = jnp.any(kept)
    return jnp.where(some, jnp.sum(loss) / jnp.where(some, jnp.sum(weights), 1), jnp.nan)


def _nll_loss(logp, target, weight=None, ignore_index=-100, reduction="mean"):
    """Return the negative log likelihood of classes; logp is (classes,) or (batch, classes, ...)."""
    axis = 0 if logp.ndim == 1 else 1
    kept = target != ignore_index
    index = jnp.where(kept, target, 0)
    picked = jnp.squeeze(jnp.take_along_axis(logp, jnp.expand_dims(index, axis), axis=axis), axis)
    weights = jnp.where(kept, 1 if weight is None else weight[index], 0).astype(logp.dtype)
    loss = -picked * weights
    return _mean_of_kept(loss, weights, kept) if reduction == "mean" else _reduced(loss, reduction)


def _cross_entropy(logits, target, weight=None, ignore_index=-100, reduction="mean", label_smoothing=0.0):
    """Return the cross entropy of logits with classes, or with probabilities of the logits' shape."""
    axis = 0 if logits.ndim == 1 else 1
    logp = jax.nn.log_softmax(logits, axis=axis)
    classes = logits.shape[axis]
    scale = None if weight is None else weight.reshape((-1,) + (1,) * (logits.ndim - axis - 1))
    scaled = logp if weight is None else logp * scale
    if jnp.issubdtype(target.dtype, jnp.floating):
        if label_smoothing:
            target = target * (1 - label_smoothing) + label_smoothing / classes
        loss = -jnp.sum(scaled * target, axis=axis)
        return jnp.sum(loss) / (logits.size / classes) if reduction == "mean" else _reduced(loss, reduction)
    loss = _nll_loss(logp, target, weight, ignore_index, reduction)
    if not label_smoothing:
        return loss
    kept = target != ignore_index
    smooth = jnp.where(kept, -jnp.sum(scaled, axis=axis), 0)
    if reduction == "mean":
        weights = kept if weight is None else jnp.where(kept, weight[jnp.where(kept, target, 0)], 0)
        smooth = _mean_of_kept(smooth, weights, kept)
    else:
        smooth = _reduced(smooth, reduction)
    return (1 - label_smoothing) * loss + smooth * label_smoothing / classes


def _binary_cross_entropy(p, target, weight=None, reduction="mean"):
    """Return the cross entropy of probabilities, with logarithms of at least -100 and a finite slope at 0 and 1."""

    def logarithms(p):
        return jnp.maximum(jnp.log(p), -100), jnp.maximum(jnp.log1p(-p), -100)

    @jax.custom_jvp
    def entropy(p, target):
        yes, no = logarithms(p)
        return -(target * yes + (1 - target) * no)

    @entropy.defjvp
    def slope(primals, tangents):
        p, target = primals
        yes, no = logarithms(p)
        along = (p - target) / jnp.maximum((1 - p) * p, 1e-12)
        return entropy(p, target), along * tangents[0] + (no - yes) * tangents[1]

    loss = entropy(*jnp.broadcast_arrays(p, target))
    return _reduced(loss if weight is None else loss * weight, reduction)


def _binary_cross_entropy_with_logits(x, target, weight=None, reduction="mean", pos_weight=None):
    """Return the binary cross entropy of logits."""
    scale = 1 if pos_weight is None else pos_weight
    loss = -(scale * target * jax.nn.log_sigmoid(x) + (1 - target) * jax.nn.log_sigmoid(-x))
    return _reduced(loss if weight is None else loss * weight, reduction)


def _kl_div(x, target, reduction="mean", log_target=False):
    """Return the Kullback-Leibler divergence of log probabilities x from the target."""
    loss = jnp.exp(target) * (target - x) if log_target else jax.scipy.special.xlogy(target, target) - target * x
    return jnp.sum(loss) / (x.shape or (1,))[0] if reduction == "batchmean" else _reduced(loss, reduction)


def _poisson_nll_loss(x, target, log_input=True, full=False, eps=1e-8, reduction="mean"):
    """Return the negative log likelihood of counts."""
    if jnp.issubdtype(x.dtype, jnp.inexact) and not jnp.issubdtype(target.dtype, jnp.inexact):
        target = target.astype(x.dtype)
    loss = jnp.exp(x) - target * x if log_input else x - target * jnp.log(x + eps)
    if full:
        stirling = target * jnp.log(target) - target + 0.5 * jnp.log(2 * math.pi * target)
        loss = loss + jnp.where(target > 1, stirling, 0)
    return _reduced(loss, reduction)


def _gaussian_nll_loss(x, target, var, full=False, eps=1e-6, reduction="mean"):
    """Return the negative log likelihood of normal variables."""
    var = jnp.full_like(x, var) if jnp.ndim(var) == 0 else var
    var = var[..., None] if var.ndim == x.ndim - 1 else var
    var = jnp.maximum(var, eps)
    loss = 0.5 * (jnp.log(var) + jnp.square(x - target) / var)
    return _reduced(loss + 0.5 * math.log(2 * math.pi) if full else loss, reduction)


def _cosine_embedding_loss(x, y, target, margin=0.0):
    """Return one minus the cosine for matching pairs, and the excess of the cosine over the margin for the others."""
    square = [jnp.sum(v * v, axis=-1) + 1e-12 for v in (x, y)]
    cosine = jnp.sum(x * y, axis=-1) / jnp.sqrt(square[0] * square[1])
    return jnp.where(target == 1, 1 - cosine, 0) + jnp.where(target == -1, jnp.maximum(cosine - margin, 0), 0)


def _triplet_margin_loss(anchor, positive, negative, margin=1.0, p=2, eps=1e-6, swap=False):
    """Return by how much the positive is too far away, compared with the negative and a margin."""

    def distance(x, y):
        return jnp.linalg.vector_norm(x - y + eps, ord=p, axis=-1)

    return _triplet_distance_loss(anchor, positive, negative, distance, margin, swap)


def _triplet_distance_loss(anchor, positive, negative, distance=None, margin=1.0, swap=False):
    """Return by how much the positive is too far away, compared with the negative, by a distance (Euclidean by default)."""
    distance = distance or (lambda x, y: jnp.linalg.vector_norm(x - y + 1e-6, axis=-1))
    far = distance(anchor, negative)
    if swap:
        far = jnp.minimum(far, distance(positive, negative))
    return jnp.maximum(distance(anchor, positive) - far + margin, 0)


def _multilabel_margin_loss(x, target):
    """Return by how much other classes come within 1 of each right one; these end at the first -1."""
    x, target = jnp.atleast_1d(x), jnp.atleast_1d(target)
    right = jnp.cumprod(target >= 0, axis=-1).astype(bool)[..., None]
    places = jnp.where(right[..., 0], target, 0)
    within = 1 - jnp.take_along_axis(x, places, axis=-1)[..., None] + x[..., None, :]
    chosen = jnp.any(right & (places[..., None] == jnp.arange(x.shape[-1])), axis=-2, keepdims=True)
    return jnp.sum(jnp.where(right & ~chosen & (within > 0), within, 0), axis=(-2, -1)) / x.shape[-1]


def _multilabel_soft_margin_loss(x, target, weight=None):
    """Return the mean binary cross entropy over classes for each row."""
    loss = -(target * jax.nn.log_sigmoid(x) + (1 - target) * jax.nn.log_sigmoid(-x))
    return jnp.mean(loss if weight is None else loss * weight, axis=-1)


def _multi_margin_loss(x, target, p=1, margin=1.0, weight=None):
    """Return by how much the other classes come within the margin of the right one."""
    x = jnp.atleast_1d(x)
    target = target.reshape(x.shape[:-1])  # of one sample its class may be a vector of one
    right = jnp.take_along_axis(x, target[..., None], axis=-1)
    within = margin - right + x
    loss = jnp.where(within > 0, within, 0) ** p  # at the margin itself the slope is 0
    loss = loss if weight is None else loss * weight[target][..., None]
    others = jnp.arange(x.shape[-1]) != target[..., None]
    return jnp.sum(jnp.where(others, loss, 0), axis=-1) / x.shape[-1]
