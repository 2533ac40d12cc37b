"""Train a digit classifier whose layers are PyTorch-style custom Functions.

The data are scikit-learn's 1797 handwritten digits of 8 × 8 pixels, which come with that package; a quarter of them is
held out. The network has three layers. Its weights are rounded to a few bits while it trains, and its normalisation and
its activation have backward passes written by hand. All three are `fnjax.Function` classes, as one writes them in
PyTorch, here inside `jax.jit`, `jax.lax.scan`, `jax.value_and_grad` and an optax optimiser.

    python examples/digits.py            trains, prints the accuracies and writes digits.png
    python examples/digits.py --check    trains once more with JAX's own derivatives and compares
"""

import argparse
import pathlib
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from tqdm import tqdm

import fnjax

# ------------------------------------------------------------------------------------------------------ the Functions


class Swish(fnjax.Function):
    """x · sigmoid(x), which keeps nothing but its input for the backward pass."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * jax.nn.sigmoid(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        s = jax.nn.sigmoid(x)
        return grad_output * s * (1 + x * (1 - s))


class LayerNorm(fnjax.Function):
    """Bring each row of `x` to mean 0 and variance 1, then scale it by `weight` and shift it by `bias`."""

    @staticmethod
    def forward(ctx, x, weight, bias, eps=1e-5):
        centred = x - x.mean(-1, keepdims=True)
        rstd = jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + eps)
        normal = centred * rstd
        ctx.save_for_backward(normal, rstd, weight)
        return normal * weight + bias

    @staticmethod
    def backward(ctx, grad_output):
        normal, rstd, weight = ctx.saved_tensors
        grad = grad_output * weight
        along = normal * (grad * normal).mean(-1, keepdims=True)
        grad_x = rstd * (grad - grad.mean(-1, keepdims=True) - along)
        return grad_x, (grad_output * normal).sum(0), grad_output.sum(0), None


class FakeQuantize(fnjax.Function):
    """Round to the values that a signed integer of `bits` bits can stand for, spread evenly from -limit to limit.

    The gradient goes straight through the rounding, which has none of its own, and is zero outside of the range.
    """

    @staticmethod
    def forward(ctx, x, bits, limit):
        ctx.save_for_backward(x)
        ctx.limit = limit
        step = limit / (2 ** (bits - 1) - 1)
        return jnp.round(jnp.clip(x, -limit, limit) / step) * step

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return jnp.where(jnp.abs(x) <= ctx.limit, grad_output, 0), None, None


# ------------------------------------------------------------------------- the same in plain JAX, which --check uses


def plain_swish(x):
    return x * jax.nn.sigmoid(x)


def plain_layer_norm(x, weight, bias, eps=1e-5):
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + eps) * weight + bias


def plain_fake_quantize(x, bits, limit):
    step = limit / (2 ** (bits - 1) - 1)
    clipped = jnp.clip(x, -limit, limit)
    rounded = jnp.round(clipped / step) * step
    # In this order the clipped values cancel without a rounding error.
    return jax.lax.stop_gradient(rounded) + (clipped - jax.lax.stop_gradient(clipped))


# ----------------------------------------------------------------------------------------------------------- the model


class Layers(NamedTuple):
    swish: Callable[..., Any]
    layer_norm: Callable[..., Any]
    fake_quantize: Callable[..., Any]


FUNCTIONS = Layers(Swish.apply, LayerNorm.apply, FakeQuantize.apply)
PLAIN = Layers(plain_swish, plain_layer_norm, plain_fake_quantize)

SIZES = (64, 128, 64, 10)
BITS, LIMIT = 4, 0.5
BATCH = 64


def initial_parameters(rng):
    return [
        {
            "kernel": rng.standard_normal((n, m), dtype=np.float32) / np.float32(np.sqrt(n)),
            "weight": np.ones(m, np.float32),
            "bias": np.zeros(m, np.float32),
        }
        for n, m in zip(SIZES, SIZES[1:], strict=False)
    ]


def predict(layers, params, images):
    """The logits, (batch, 10), of images, (batch, 64)."""
    x = images
    for i, p in enumerate(params):
        if i > 0:
            x = layers.swish(x)
        x = layers.layer_norm(x @ layers.fake_quantize(p["kernel"], BITS, LIMIT), p["weight"], p["bias"])
    return x
