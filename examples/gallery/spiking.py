"""A spiking network learns digits by surrogate gradients (Neftci et al., 2019, https://arxiv.org/abs/1901.09948).

A neuron fires when its potential passes a threshold: a step, whose derivative is zero. Backward takes that of a fast
sigmoid instead. Time runs in a `jax.lax.scan`.

    python examples/gallery/spiking.py picture.png
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


class Spike(fnjax.Function):
    """1 where the potential is above zero, else 0; the gradient is that of a fast sigmoid of this steepness."""

    @staticmethod
    def forward(ctx, potential, steepness=10.0):
        ctx.save_for_backward(potential)
        ctx.steepness = steepness
        return (potential > 0).astype(potential.dtype)

    @staticmethod
    def backward(ctx, grad_output):
        (potential,) = ctx.saved_tensors
        return grad_output / (1 + ctx.steepness * jnp.abs(potential)) ** 2, None


STEPS, DECAY = 20, 0.9


def network(params, images):
    """Return the logits (n, 10) and the spikes (time, n, hidden) of leaky integrate-and-fire neurons."""
    current = images @ params["into"]

    def step(state, _):
        potential, readout = state
        potential = DECAY * potential + current
        spikes = Spike.apply(potential - 1.0)
        readout = DECAY * readout + spikes @ params["out"]
        return (potential - spikes, readout), spikes

    start = jnp.zeros_like(current), jnp.zeros((len(images), 10))
    (_, readout), spikes = jax.lax.scan(step, start, length=STEPS)
    return readout / STEPS, spikes


def train(steps=300, hidden=100, show=False):
    """Return the accuracy on held-out digits, the losses, and the spikes for one digit."""
    images, labels = load_digits(return_X_y=True)
    images, rng = (images / 16).astype(np.float32), np.random.default_rng(0)
    order = rng.permutation(len(images))
    fit, held_out = order[:1300], order[1300:]
    params = {
        "into": jnp.asarray(rng.normal(size=(64, hidden)) / 8, jnp.float32),
        "out": jnp.asarray(rng.normal(size=(hidden, 10)) / 10, jnp.float32),
    }
    optimiser = optax.adam(3e-3)

    def loss(params, images, labels):
        return optax.softmax_cross_entropy_with_integer_labels(network(params, images)[0], labels).mean()

    @jax.jit
    def step(params, state, images, labels):
        value, grads = jax.value_and_grad(loss)(params, images, labels)
        updates, state = optimiser.update(grads, state)
        return optax.apply_updates(params, updates), state, value, jnp.abs(grads["into"]).max()

    state, losses = optimiser.init(params), []
    for _ in trange(steps, desc="training", disable=None if show else True):
        batch = rng.choice(fit, 64)
        params, state, value, slope = step(params, state, images[batch], labels[batch])
        losses.append(float(value))
    logits, spikes = network(params, images[held_out])
    accuracy = float(np.mean(logits.argmax(1) == labels[held_out]))
    return {"accuracy": accuracy, "losses": losses, "spikes": np.asarray(spikes[:, 0]), "slope": float(slope)}


def main(path="spiking.png"):
    result = train(show=True)
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot(result["losses"])
    left.set(title=f"{result['accuracy']:.1%} of held-out digits read", xlabel="step", ylabel="loss")
    time, neuron = np.nonzero(result["spikes"])
    right.scatter(time, neuron, s=4, color="black")
    right.set(title="Spikes for one digit", xlabel="time", ylabel="neuron")
    figure.savefig(path, dpi=120)
    print(f"accuracy on held-out digits: {result['accuracy']:.1%}; {result['spikes'].mean():.1%} of neurons fire")


if __name__ == "__main__":
    main(*sys.argv[1:2])
