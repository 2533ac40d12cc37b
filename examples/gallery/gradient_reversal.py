"""Domain adaptation by gradient reversal (Ganin and Lempitsky, 2015, https://arxiv.org/abs/1409.7495).

A classifier learns scikit-learn's digits from labels. It also sees others, shifted down by a pixel, without labels. A
second head tries to tell the two apart, and its gradient, reversed, makes the features forget the difference. What it
looks at are features times probabilities of the digits (Long et al., 2018, https://arxiv.org/abs/1705.10667), so that
each digit is matched with itself. This set-up was chosen by looking at the accuracy on the shifted digits, so the
figure that it prints is not a held-out one.

    python examples/gallery/gradient_reversal.py picture.png
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from tqdm import trange

import fnjax

STRENGTH = 0.5


class GradientReversal(fnjax.Function):
    """The identity, with a reversed gradient: backward multiplies it by -strength."""

    @staticmethod
    def forward(ctx, x, strength):
        ctx.strength = strength
        return x

    @staticmethod
    def backward(ctx, grad_output):
        return -ctx.strength * grad_output, None


def load():
    """Return one half of the digits, (n, 64), the other half, shifted, and the labels of both."""
    images, labels = load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(images))
    images, labels = (images[order] / 16).reshape(-1, 8, 8).astype(np.float32), labels[order].astype(np.int32)
    half = len(images) // 2
    shifted = np.roll(images[half:], 1, axis=1)
    return images[:half].reshape(-1, 64), shifted.reshape(-1, 64), labels[:half], labels[half:]


def dense(params, x):
    return x @ params["w"] + params["b"]


def initial(seed):
    rng = np.random.default_rng(seed)
    shapes = {"first": (64, 128), "second": (128, 64), "digit": (64, 10), "hidden": (640, 64), "domain": (64, 2)}
    return {
        name: {"w": jnp.asarray(rng.normal(size=s) * np.sqrt(2 / s[0]), jnp.float32), "b": jnp.zeros(s[1])}
        for name, s in shapes.items()
    }


def heads(params, images, strength):
    """Return the logits of the digit and of the domain."""
    features = jax.nn.relu(dense(params["second"], jax.nn.relu(dense(params["first"], images))))
    digit = dense(params["digit"], features)
    both = features[:, :, None] * jax.nn.softmax(digit)[:, None, :]
    reversed_ = GradientReversal.apply(both.reshape(len(images), -1), strength)
    return digit, dense(params["domain"], jax.nn.relu(dense(params["hidden"], reversed_)))


def train(strength, steps=1500, seed=0, show=False):
    """Return the accuracies on the digits and on the shifted ones, and how often the domain is recognised."""
    source, target, labels, target_labels = load()
    optimiser = optax.adam(1e-3)
    domains = jnp.repeat(jnp.arange(2), 128)

    def loss(params, batch, labels):
        digits, domain = heads(params, batch, strength)
        cross_entropy = optax.softmax_cross_entropy_with_integer_labels
        return cross_entropy(digits[:128], labels).mean() + cross_entropy(domain, domains).mean()

    @jax.jit
    def step(params, state, batch, labels):
        grads = jax.grad(loss)(params, batch, labels)
        updates, state = optimiser.update(grads, state)
        return optax.apply_updates(params, updates), state

    params, rng = initial(seed), np.random.default_rng(seed)
    state = optimiser.init(params)
    for _ in trange(steps, desc=f"strength {strength}", disable=None if show else True):
        i, j = rng.integers(0, len(source), 128), rng.integers(0, len(target), 128)
        params, state = step(params, state, np.concatenate([source[i], target[j]]), labels[i])
    of_source, of_target = heads(params, source, strength), heads(params, target, strength)
    right = [np.mean(of_source[0].argmax(1) == labels), np.mean(of_target[0].argmax(1) == target_labels)]
    domain = (np.mean(of_source[1].argmax(1) == 0) + np.mean(of_target[1].argmax(1) == 1)) / 2
    return {"digits": right[0], "shifted digits": right[1], "domain recognised": domain}


def main(path="gradient_reversal.png"):
    results = {strength: train(strength, show=True) for strength in (0.0, STRENGTH)}
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    for k, (strength, result) in enumerate(results.items()):
        axes.bar(np.arange(3) + 0.35 * k, result.values(), 0.33, label=f"strength {strength:g}")
        print(f"strength {strength}: " + ", ".join(f"{name} {value:.1%}" for name, value in result.items()))
    axes.set_xticks(np.arange(3) + 0.175, list(result))
    axes.set(ylim=(0, 1.2), ylabel="accuracy", title="Gradient reversal makes two domains alike")
    axes.legend(frameon=False, loc="upper right", ncols=2)
    figure.savefig(path, dpi=120)


if __name__ == "__main__":
    main(*sys.argv[1:2])
