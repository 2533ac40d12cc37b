"""The critic of a WGAN with gradient penalty (Gulrajani et al., 2017, https://arxiv.org/abs/1704.00028).

The penalty is on the gradient of the critic, so training differentiates twice, through an activation that is a
Function. The critic compares a cloud of points with a copy of it that is moved by (3, 4): their Wasserstein distance is
5. With a penalty of weight p the best critic of such a pair is linear with a slope of 1 + 5 / 2p, so what it finds is 5
+ 25 / 2p.

    python examples/gallery/wgan_gp.py picture.png
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure
from tqdm import trange

import fnjax


class Swish(fnjax.Function):
    """x · sigmoid(x), which keeps its input only."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * jax.nn.sigmoid(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        s = jax.nn.sigmoid(x)
        return grad_output * s * (1 + x * (1 - s))


PENALTY = 50.0
MOVE = np.array([3.0, 4.0], np.float32)
RIGHT = 5 + 25 / (2 * PENALTY)


def critic(params, point):
    x = point
    for w, b in params[:-1]:
        x = Swish.apply(x @ w + b)
    w, b = params[-1]
    return (x @ w + b)[0]


def loss(params, real, fake, mixed):
    """Return the critic's loss, with the penalty on gradient lengths other than 1, and the distance and mean length."""
    value = jax.vmap(critic, (None, 0))
    slope = jax.vmap(jax.grad(critic, argnums=1), (None, 0))(params, mixed)
    length = jnp.sqrt(jnp.sum(slope**2, axis=1) + 1e-12)
    distance = value(params, real).mean() - value(params, fake).mean()
    return -distance + PENALTY * jnp.mean((length - 1) ** 2), (distance, length.mean())


def train(steps=1500, show=False):
    """Train the critic; return the distances and gradient lengths of all steps, and the critic."""
    rng = np.random.default_rng(0)
    params = [
        (jnp.asarray(rng.normal(size=(n, m)) / np.sqrt(n), jnp.float32), jnp.zeros(m))
        for n, m in ((2, 64), (64, 64), (64, 1))
    ]
    optimiser = optax.adam(optax.cosine_decay_schedule(3e-3, steps), b1=0.5)
    state, history = optimiser.init(params), []

    @jax.jit
    def step(params, state, real, fake, part):
        mixed = part * real + (1 - part) * fake
        grads, measures = jax.grad(loss, has_aux=True)(params, real, fake, mixed)
        updates, state = optimiser.update(grads, state)
        return optax.apply_updates(params, updates), state, measures

    for _ in trange(steps, desc="critic", disable=None if show else True):
        fake = rng.normal(size=(256, 2)).astype(np.float32)
        real = fake[rng.permutation(256)] + MOVE  # the same points, moved: no error of sampling
        part = rng.uniform(size=(256, 1)).astype(np.float32)
        params, state, measures = step(params, state, real, fake, part)
        history.append(measures)
    return np.array(history, np.float64), params


def main(path="wgan_gp.png"):
    history, params = train(show=True)
    figure = Figure(figsize=(9, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(history[:, 0], label="distance")
    left.plot(history[:, 1], label="length of the gradient")
    left.axhline(RIGHT, color="gray", ls="--", lw=1)
    left.set(title="What the critic finds", xlabel="step")
    left.legend(frameon=False)
    x, y = np.meshgrid(np.linspace(-3, 6, 60), np.linspace(-3, 7, 60))
    heights = jax.vmap(critic, (None, 0))(params, np.stack([x.ravel(), y.ravel()], 1).astype(np.float32))
    right.contourf(x, y, np.asarray(heights).reshape(x.shape), 20, cmap="viridis")
    cloud = np.random.default_rng(1).normal(size=(200, 2))
    right.scatter(*cloud.T, s=4, color="white")
    right.scatter(*(cloud + MOVE).T, s=4, color="orange")
    right.set(title="The critic, and both clouds")
    figure.savefig(path, dpi=120)
    distance, length = history[-100:].mean(0)
    print(f"distance {distance:.2f} ({RIGHT:.2f} is right), length of the gradient {length:.3f}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
