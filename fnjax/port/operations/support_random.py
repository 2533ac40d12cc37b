# What ported code carries has no types.
# mypy: ignore-errors
"""Functions that ported code carries: random draws."""

import jax
import jax.numpy as jnp


def _multinomial(key, weights, count, replacement=False):
    """Indices drawn with the probabilities of their weights, in each row."""
    if replacement:
        return jnp.moveaxis(jax.random.categorical(key, jnp.log(weights), shape=(count, *weights.shape[:-1])), 0, -1)
    noise = jax.random.gumbel(key, weights.shape)
    return jax.lax.top_k(jnp.log(weights) + noise, count)[1]


def _dropout(key, x, p):
    """Entries zeroed with probability p, the others scaled up."""
    return jnp.where(jax.random.bernoulli(key, 1 - p, x.shape), x / (1 - p), 0)


def _dropout_channels(key, x, p):
    """Channels zeroed with probability p, the others scaled up."""
    return jnp.where(jax.random.bernoulli(key, 1 - p, x.shape[:2] + (1,) * (x.ndim - 2)), x / (1 - p), 0)


def _gumbel_softmax(key, logits, tau=1, hard=False, axis=-1):
    """Samples of the Gumbel-softmax distribution; hard ones are one-hot with the soft ones' gradient."""
    soft = jax.nn.softmax((logits + jax.random.gumbel(key, logits.shape, logits.dtype)) / tau, axis=axis)
    if not hard:
        return soft
    places = jax.nn.one_hot(jnp.argmax(soft, axis=axis), soft.shape[axis], axis=axis, dtype=soft.dtype)
    return jax.lax.stop_gradient(places - soft) + soft
