"""Differentiable ranks (Blondel et al., 2020, https://arxiv.org/abs/2002.08871): a regression for rank correlation.

Ranks are the projection of the values onto the permutahedron, which isotonic regression computes; its derivative takes
means over blocks. A linear score is fitted so that its ranks are those of the target, which outliers and a bent scale
cannot hurt.

    python examples/gallery/soft_rank.py picture.png
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure
from scipy.stats import spearmanr
from tqdm import trange

import fnjax


def isotonic(s):
    """Project s on decreasing sequences: at each index the least, over starts, of the largest mean, over ends."""
    n = len(s)
    sums = jnp.concatenate([jnp.zeros(1, s.dtype), jnp.cumsum(s)])
    start, stop = jnp.arange(n)[:, None], jnp.arange(n)[None, :]
    means = jnp.where(start <= stop, (sums[stop + 1] - sums[start]) / jnp.maximum(stop - start + 1, 1), -jnp.inf)
    largest = jax.lax.cummax(means, axis=1, reverse=True)  # [j, i]: over the ends from i on
    return jnp.min(jnp.where(start <= stop, largest, jnp.inf), axis=0)


class SoftRank(fnjax.Function):
    """The ranks, 1 for the least, of an array (n,); the larger `regularisation`, the softer."""

    @staticmethod
    def forward(ctx, values, regularisation=1.0):
        z = values / regularisation
        order = jnp.argsort(-z)
        blocks = isotonic(z[order] - jnp.arange(len(z), 0, -1, dtype=z.dtype))
        back = blocks[jnp.argsort(order)]  # in the order of the values
        ctx.save_for_backward(back)
        ctx.regularisation = regularisation
        return z - back

    @staticmethod
    def backward(ctx, grad_output):
        (blocks,) = ctx.saved_tensors
        same = (jnp.abs(blocks[:, None] - blocks[None, :]) < 1e-5).astype(grad_output.dtype)
        return (grad_output - same @ grad_output / same.sum(1)) / ctx.regularisation, None


def data(n=300, seed=0):
    """Return inputs (n, 5), and a target that grows with a linear score, on a nonlinear scale and with outliers."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(n, 5)).astype(np.float32)
    score = x @ np.array([1.0, -2.0, 0.5, 0.0, 1.5]) + 0.1 * rng.normal(size=n)
    y = np.exp(2 * score)
    y[rng.choice(n, n // 20, replace=False)] *= 1000
    return x, y


def train(steps=300, show=False):
    """Return Spearman's correlation on new data, of least squares and of the fit by ranks, and the latter's scores."""
    x, y = data()
    ranks = np.argsort(np.argsort(y)).astype(np.float32)
    target = (ranks - ranks.mean()) / ranks.std()
    optimiser = optax.adam(3e-2)

    def loss(w):
        scores = x @ w
        soft = SoftRank.apply((scores - scores.mean()) / scores.std(), 0.02)
        return 1 - jnp.mean((soft - soft.mean()) / soft.std() * target)

    @jax.jit
    def step(w, state):
        value, grads = jax.value_and_grad(loss)(w)
        updates, state = optimiser.update(grads, state)
        return optax.apply_updates(w, updates), state, value

    w = jnp.asarray(np.random.default_rng(1).normal(size=5), jnp.float32)
    state = optimiser.init(w)
    for _ in trange(steps, desc="fitting", disable=None if show else True):
        w, state, _ = step(w, state)
    new_x, new_y = data(seed=2)
    plain = np.linalg.lstsq(x, y - y.mean(), rcond=None)[0]
    correlations = {
        "least squares": spearmanr(new_x @ plain, new_y).statistic,
        "soft ranks": spearmanr(new_x @ np.asarray(w), new_y).statistic,
    }
    return correlations, np.stack([new_x @ plain, new_x @ np.asarray(w), new_y])


def main(path="soft_rank.png"):
    correlations, (plain, fitted, y) = train(show=True)
    figure = Figure(figsize=(9, 4), layout="constrained")
    for axes, (name, value), scores in zip(figure.subplots(1, 2), correlations.items(), (plain, fitted), strict=True):
        axes.scatter(scores, y, s=6)
        axes.set(title=f"{name}: rank correlation {value:.3f}", xlabel="score", ylabel="target", yscale="log")
        print(f"{name}: Spearman's correlation {value:.3f} on new data")
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main(*sys.argv[1:2])
