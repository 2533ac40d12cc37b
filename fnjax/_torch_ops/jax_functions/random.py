# Ported code has no types.
# mypy: ignore-errors
"""Functions that expressions of the table call, and that ports copy: random draws."""

import jax
import jax.numpy as jnp


def _multinomial(key, weights, count, replacement=False):
    """Draw indices with probabilities proportional to their weights, in each row."""
    if replacement:
        return jnp.moveaxis(jax.random.categorical(key, jnp.log(weights), shape=(count, *weights.shape[:-1])), 0, -1)
    noise = jax.random.gumbel(key, weights.shape)
    return jax.lax.top_k(jnp.log(weights) + noise, count)[1]


def _dropout(key, x, p):
    """Set elements to zero with probability p, and scale the others up."""
    return jnp.where(jax.random.bernoulli(key, 1 - p, x.shape), x / (1 - p), 0)


def _dropout_channels(key, x, p):
    """Set channels to zero with probability p, and scale the others up."""
    return jnp.where(jax.random.bernoulli(key, 1 - p, x.shape[:2] + (1,) * (x.ndim - 2)), x / (1 - p), 0)


def _alpha_dropout(key, x, p, shape):
    """Set elements to selu's lower limit with probability p, keeping mean and variance."""
    low = -1.7580993408473766  # -alpha * scale of selu
    kept = jax.random.bernoulli(key, 1 - p, shape)
    scale = 0.0 if p == 1 else ((1 - p) * (1 + p * low**2)) ** -0.5
    return (jnp.where(kept, x, low) - low * p) * scale if scale else jnp.zeros_like(x)


def _rrelu(key, x, lower, upper):
    """Return the rectified elements, with a slope below zero that is drawn for each."""
    return jnp.where(x >= 0, x, x * jax.random.uniform(key, x.shape, x.dtype, lower, upper))


def _gumbel_softmax(key, logits, tau=1, hard=False, axis=-1):
    """Draw samples of the Gumbel-softmax distribution; hard ones are one-hot with the soft ones' gradient."""
    soft = jax.nn.softmax((logits + jax.random.gumbel(key, logits.shape, logits.dtype)) / tau, axis=axis)
    if not hard:
        return soft
    places = jax.nn.one_hot(jnp.argmax(soft, axis=axis), soft.shape[axis], axis=axis, dtype=soft.dtype)
    return jax.lax.stop_gradient(places - soft) + soft


def _logits(probs):
    """Return the logits of probabilities, clipped away from 0 and 1."""
    eps = jnp.finfo(jnp.result_type(probs)).eps
    probs = jnp.clip(probs, eps, 1 - eps)
    return jnp.log(probs) - jnp.log1p(-probs)


def _log_probs(weights):
    """Return the logarithms of weights, normalised along the last axis and clipped away from 0 and 1."""
    eps = jnp.finfo(weights.dtype).eps
    return jnp.log(jnp.clip(weights / jnp.sum(weights, axis=-1, keepdims=True), eps, 1 - eps))


def _categorical_log_prob(logits, value):
    """Return the logarithms of the probabilities of these classes."""
    shape = jnp.broadcast_shapes(value.shape, logits.shape[:-1])
    logits = jnp.broadcast_to(logits, (*shape, logits.shape[-1]))
    classes = jnp.broadcast_to(value, shape).astype(int)[..., None]
    return jnp.take_along_axis(logits, classes, axis=-1)[..., 0]


def _categorical_entropy(logits):
    """Return the entropy of classes with these log probabilities."""
    return -jnp.sum(jax.nn.softmax(logits) * jnp.maximum(logits, jnp.finfo(logits.dtype).min), axis=-1)
