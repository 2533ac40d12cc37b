"""A transformer block of one tensor-parallel device, and the same on one device in plain JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from regions_jax import CopyToRegion, ReduceFromRegion

import fnjax

TOKENS, WIDTH, HEADS, HIDDEN = 32, 64, 4, 256
# Sharding of a block's weights over the devices of a stage: heads and hidden units are sharded, the rest replicated.
SPECS = {
    "norm": jax.P(),
    "query_key_value": jax.P(None, None, "model"),
    "out": jax.P("model"),
    "mlp_norm": jax.P(),
    "up": jax.P(None, "model"),
    "down": jax.P("model"),
}


class RMSNorm(fnjax.Function):
    """x scaled to a mean square of 1, times weight."""

    @staticmethod
    def forward(ctx, x, weight):
        scale = jax.lax.rsqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6)
        ctx.save_for_backward(x, weight, scale)
        return x * scale * weight

    @staticmethod
    def backward(ctx, grad_output):
        x, weight, scale = ctx.saved_tensors
        normed, grad = x * scale, grad_output * weight
        grad_x = scale * (grad - normed * jnp.mean(grad * normed, -1, keepdims=True))
        return grad_x, jnp.sum(grad_output * normed, 0)


class SquaredReLU(fnjax.Function):
    """max(x, 0)², which saves half of what JAX would."""

    @staticmethod
    def forward(ctx, x):
        positive = jnp.maximum(x, 0)
        ctx.save_for_backward(positive)
        return positive**2

    @staticmethod
    def backward(ctx, grad_output):
        (positive,) = ctx.saved_tensors
        return 2 * positive * grad_output


def attend(x, query_key_value, out):
    """Causal attention: x (tokens, width), query_key_value (3, width, heads · size), out (heads · size, width)."""
    size = WIDTH // HEADS
    q, k, v = (a.reshape(len(x), -1, size).swapaxes(0, 1) for a in jnp.einsum("tw,iwh->ith", x, query_key_value))
    scores = jnp.where(jnp.tri(len(x), dtype=bool), q @ k.swapaxes(1, 2) / np.sqrt(size), -jnp.inf)
    return (jax.nn.softmax(scores) @ v).swapaxes(0, 1).reshape(len(x), -1) @ out


def block(weights, x):
    """Compute a block on one device of a stage, which holds some heads and some hidden units."""
    inside = CopyToRegion.apply(RMSNorm.apply(x, weights["norm"]), "model")
    x = x + ReduceFromRegion.apply(attend(inside, weights["query_key_value"], weights["out"]), "model")
    inside = CopyToRegion.apply(RMSNorm.apply(x, weights["mlp_norm"]), "model")
    return x + ReduceFromRegion.apply(SquaredReLU.apply(inside @ weights["up"]) @ weights["down"], "model")


def plain_block(weights, x):
    """Compute the same without Functions and without devices."""

    def norm(x, weight):
        return x / jnp.sqrt(jnp.mean(x**2, -1, keepdims=True) + 1e-6) * weight

    x = x + attend(norm(x, weights["norm"]), weights["query_key_value"], weights["out"])
    return x + jax.nn.relu(norm(x, weights["mlp_norm"]) @ weights["up"]) ** 2 @ weights["down"]


def make_weights(seed):
    """Random weights of a block."""
    rng = np.random.default_rng(seed)
    sizes = {
        "query_key_value": (3, WIDTH, WIDTH),
        "out": (WIDTH, WIDTH),
        "up": (WIDTH, HIDDEN),
        "down": (HIDDEN, WIDTH),
    }
    made = {name: rng.normal(size=size, scale=size[-2] ** -0.5).astype(np.float32) for name, size in sizes.items()}
    return made | {name: np.ones(WIDTH, np.float32) for name in ("norm", "mlp_norm")}


def loss(out, target):
    """Mean squared error."""
    return jnp.mean((out - target) ** 2)
