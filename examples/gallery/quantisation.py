"""Quantisation-aware training in Flax NNX, with a learned step size (Esser et al., https://arxiv.org/abs/1902.08153).

The weights are rounded to a few bits while the network trains. Rounding has no gradient: that of the weights goes
straight through, and that of the step size is the one which the paper derives.

    python examples/gallery/quantisation.py picture.png
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import nnx
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from tqdm import trange

import fnjax

BITS = 2


class Quantise(fnjax.Function):
    """`weight` as whole multiples, of `bits` bits, of `step`."""

    @staticmethod
    def forward(ctx, weight, step, bits):
        ctx.save_for_backward(weight, step)
        ctx.low, ctx.high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
        return jnp.clip(jnp.round(weight / step), ctx.low, ctx.high) * step

    @staticmethod
    def backward(ctx, grad_output):
        weight, step = ctx.saved_tensors
        ratio = weight / step
        inside = (ratio >= ctx.low) & (ratio <= ctx.high)
        by_step = jnp.where(inside, jnp.round(ratio) - ratio, jnp.clip(ratio, ctx.low, ctx.high))
        scale = 1 / np.sqrt(weight.size * ctx.high)  # the paper's, which slows the step size down
        return jnp.where(inside, grad_output, 0), scale * jnp.sum(grad_output * by_step), None


class QuantisedLinear(nnx.Linear):
    """A dense layer whose kernel is quantised, once `bits` is set."""

    def __init__(self, n, m, *, rngs):
        super().__init__(n, m, rngs=rngs)
        self.bits = None
        self.step = nnx.Param(2 * jnp.abs(self.kernel[...]).mean())

    def __call__(self, x):
        kernel = self.kernel[...]
        if self.bits is not None:
            kernel = Quantise.apply(kernel, self.step[...], self.bits)
        return x @ kernel + self.bias[...]


class Network(nnx.Module):
    def __init__(self, rngs):
        self.first, self.second = QuantisedLinear(64, 64, rngs=rngs), QuantisedLinear(64, 10, rngs=rngs)

    def quantise(self, bits):
        for layer in (self.first, self.second):
            layer.bits = bits
            layer.step[...] = 2 * jnp.abs(layer.kernel[...]).mean() / np.sqrt(2 ** (bits - 1) - 1)

    def __call__(self, x):
        return self.second(jax.nn.relu(self.first(x)))


@nnx.jit
def train_step(model, optimiser, images, labels):
    def loss(model):
        return optax.softmax_cross_entropy_with_integer_labels(model(images), labels).mean()

    value, grads = nnx.value_and_grad(loss)(model)
    optimiser.update(model, grads)
    return value


def train(steps=600, before=600, show=False):
    """Return accuracies on held-out digits: in full precision, with rounded weights, and after training with these."""
    images, labels = load_digits(return_X_y=True)
    images, order = (images / 16).astype(np.float32), np.random.default_rng(0).permutation(len(images))
    fit, held_out = order[:1300], order[1300:]
    model, rng, accuracy = Network(nnx.Rngs(0)), np.random.default_rng(1), {}
    for title, n in {"full precision": before, "rounded afterwards": 0, "trained rounded": steps}.items():
        if title == "rounded afterwards":
            model.quantise(BITS)
        optimiser = nnx.Optimizer(model, optax.adam(2e-3), wrt=nnx.Param)
        for _ in trange(n, desc=title, disable=None if show else True):
            batch = rng.choice(fit, 64)
            train_step(model, optimiser, images[batch], labels[batch])
        accuracy[title] = float(np.mean(model(images[held_out]).argmax(1) == labels[held_out]))
    kernel = Quantise.apply(model.first.kernel[...], model.first.step[...], BITS)
    return accuracy, np.asarray(kernel), np.asarray(model.first.kernel[...])


def main(path="quantisation.png"):
    accuracy, kernel, before = train(show=True)
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(list(accuracy.values()), list(accuracy), "o", ms=12)
    left.margins(0.3)
    left.set(title=f"Held-out digits, weights of {BITS} bits", xlabel="accuracy")
    right.scatter(before.ravel()[::4], kernel.ravel()[::4], s=3)
    right.set(title=f"{len(np.unique(kernel))} values are used", xlabel="weight", ylabel="quantised")
    figure.savefig(path, dpi=120)
    print(", ".join(f"{name} {value:.1%}" for name, value in accuracy.items()))


if __name__ == "__main__":
    main(*sys.argv[1:2])
