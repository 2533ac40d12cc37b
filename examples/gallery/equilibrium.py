"""A deep equilibrium layer (Bai et al., 2019, https://arxiv.org/abs/1909.01377) tells two moons apart.

The layer's output is the fixed point z = tanh(w z + u x + b). Forward iterates until z stays; backward solves a linear
equation at the fixed point, by the implicit function theorem: nothing of the iteration is kept.

    python examples/gallery/equilibrium.py picture.png
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure
from sklearn.datasets import make_moons
from tqdm import trange

import fnjax


def layer(w, u, b, x, z):
    # Divided by the largest row sum where that is above 0.9, so that there is one fixed point.
    w = w * jnp.minimum(1.0, 0.9 / jnp.abs(w).sum(1).max())
    return jnp.tanh(z @ w.T + x @ u.T + b)


def fixed_point(f, start, tolerance=1e-6, most=500):
    """Iterate `f` until its largest change is below the tolerance."""

    def goes_on(state):
        z, before, i = state
        return (jnp.abs(z - before).max() > tolerance) & (i < most)

    z, _, _ = jax.lax.while_loop(goes_on, lambda s: (f(s[0]), s[0], s[2] + 1), (f(start), start, 0))
    return z


class Equilibrium(fnjax.Function):
    """The fixed point z, (n, hidden), of `layer` for inputs x, (n, features)."""

    @staticmethod
    def forward(ctx, w, u, b, x):
        z = fixed_point(lambda z: layer(w, u, b, x, z), jnp.zeros((len(x), len(w)), x.dtype))
        ctx.save_for_backward(w, u, b, x, z)
        return z

    @staticmethod
    def backward(ctx, grad_output):
        *args, z = ctx.saved_tensors
        _, by_z = jax.vjp(lambda z: layer(*args, z), z)
        total = fixed_point(lambda v: grad_output + by_z(v)[0], grad_output)  # v = grad + (∂layer/∂z)ᵀ v
        _, by_args = jax.vjp(lambda *args: layer(*args, z), *args)
        return by_args(total)


def initial(hidden=16, seed=0):
    rng = np.random.default_rng(seed)
    shapes = {"w": (hidden, hidden), "u": (hidden, 2), "b": (hidden,), "out": (hidden,)}
    return {k: jnp.asarray(rng.normal(size=s) / np.sqrt(s[-1]), jnp.float32) for k, s in shapes.items()}


def predict(params, x, equilibrium=Equilibrium.apply):
    return equilibrium(params["w"], params["u"], params["b"], x) @ params["out"]


def train(steps=400, show=False):
    """Return the accuracy on new points, the losses and the parameters."""
    x, y = (a.astype(np.float32) for a in make_moons(400, noise=0.1, random_state=0))
    params, optimiser = initial(), optax.adam(2e-2)

    @jax.jit
    def step(params, state):
        def loss(params):
            return optax.sigmoid_binary_cross_entropy(predict(params, x), y).mean()

        value, grads = jax.value_and_grad(loss)(params)
        updates, state = optimiser.update(grads, state)
        return optax.apply_updates(params, updates), state, value

    state, losses = optimiser.init(params), []
    for _ in trange(steps, desc="training", disable=None if show else True):
        params, state, value = step(params, state)
        losses.append(float(value))
    new_x, new_y = make_moons(1000, noise=0.1, random_state=1)
    accuracy = np.mean((predict(params, new_x.astype(np.float32)) > 0) == new_y)
    return {"accuracy": float(accuracy), "losses": losses, "params": params}


def main(path="equilibrium.png"):
    result = train(show=True)
    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    a, b = np.meshgrid(np.linspace(-1.5, 2.5, 80), np.linspace(-1, 1.5, 80))
    grid = predict(result["params"], np.stack([a.ravel(), b.ravel()], 1).astype(np.float32))
    axes.contourf(a, b, np.asarray(grid).reshape(a.shape), 20, cmap="RdBu")
    x, y = make_moons(300, noise=0.1, random_state=1)
    axes.scatter(*x.T, c=y, cmap="RdBu", s=20, edgecolor="black", lw=0.5)
    axes.set_title(f"An equilibrium layer: {result['accuracy']:.1%} of new points are right")
    figure.savefig(path, dpi=120)
    print(f"accuracy on new points: {result['accuracy']:.1%}, loss {result['losses'][-1]:.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
