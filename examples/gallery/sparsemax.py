"""Sparsemax attention (Martins and Astudillo, 2016, https://arxiv.org/abs/1602.02068) in an Equinox module.

Sparsemax projects scores onto the simplex: like softmax it gives probabilities, but most of them are exactly zero. Of a
sequence of vectors two carry a mark, and the sum of their values is to be found: attention has to look at these two and
at nothing else.

    python examples/gallery/sparsemax.py picture.png
"""

import sys

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from tqdm import trange

import fnjax


class Sparsemax(fnjax.Function):
    """The point of the simplex next to each row of scores (..., n)."""

    @staticmethod
    def forward(ctx, scores):
        ranked = -jnp.sort(-scores, axis=-1)
        k = jnp.arange(1, scores.shape[-1] + 1)
        sums = jnp.cumsum(ranked, axis=-1) - 1
        size = jnp.sum(k * ranked > sums, axis=-1, keepdims=True)  # of the support
        threshold = jnp.take_along_axis(sums, size - 1, axis=-1) / size
        output = jnp.maximum(scores - threshold, 0)
        ctx.save_for_backward(output)
        return output

    @staticmethod
    def backward(ctx, grad_output):
        (output,) = ctx.saved_tensors
        support = output > 0
        inside = jnp.where(support, grad_output, 0)
        return jnp.where(support, inside - inside.sum(-1, keepdims=True) / support.sum(-1, keepdims=True), 0)


class Attention(eqx.Module):
    """Scores from a small network, then a weighted sum of the values."""

    score: eqx.nn.MLP
    scale: jax.Array
    to_weights: callable = eqx.field(static=True)

    def __init__(self, to_weights, key):
        self.score = eqx.nn.MLP(4, "scalar", 32, 1, key=key)
        self.scale, self.to_weights = jnp.ones(()), to_weights

    def weights(self, sequence):
        return self.to_weights(jax.vmap(self.score)(sequence))

    def __call__(self, sequence):
        return self.scale * self.weights(sequence) @ sequence[:, 0]


def examples(rng, n, length=12):
    """Return sequences (n, length, 4) of a value, a mark and noise; and the sums of the two marked values."""
    x = rng.normal(size=(n, length, 4)).astype(np.float32)
    x[..., 1] = 0
    for row in x:
        row[rng.choice(length, 2, replace=False), 1] = 1
    return x, (x[..., 0] * x[..., 1]).sum(1)


def train(to_weights, steps=600, show=False):
    """Return the mean squared error on new sequences, the fraction of zero weights, and some of the weights."""
    model, rng = Attention(to_weights, jax.random.key(0)), np.random.default_rng(0)
    optimiser = optax.adam(1e-2)
    state = optimiser.init(eqx.filter(model, eqx.is_inexact_array))

    @eqx.filter_value_and_grad
    def loss(model, x, y):
        return jnp.mean((jax.vmap(model)(x) - y) ** 2)

    @eqx.filter_jit
    def step(model, state, x, y):
        _, grads = loss(model, x, y)
        updates, state = optimiser.update(grads, state)
        return eqx.apply_updates(model, updates), state

    for _ in trange(steps, desc=to_weights.__name__, disable=None if show else True):
        model, state = step(model, state, *examples(rng, 64))
    x, y = examples(np.random.default_rng(1), 500)
    weights = jax.vmap(model.weights)(x)
    return {"error": float(loss(model, x, y)[0]), "zeros": float(jnp.mean(weights == 0)), "weights": weights[:12]}


def main(path="sparsemax.png"):
    results = {"softmax": train(jax.nn.softmax, show=True), "sparsemax": train(Sparsemax.apply, show=True)}
    figure = Figure(figsize=(9, 4), layout="constrained")
    for axes, (name, result) in zip(figure.subplots(1, 2), results.items(), strict=True):
        axes.imshow(result["weights"], cmap="Blues", norm=LogNorm(1e-8, 1))  # zeros stay white
        axes.set(title=f"{name}: {result['zeros']:.0%} zeros", xlabel="position", ylabel="sequence")
        print(f"{name}: squared error {result['error']:.4f}, {result['zeros']:.0%} of the weights are zero")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main(*sys.argv[1:2])
