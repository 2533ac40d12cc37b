"""A classifier whose hidden layer is sharded over four devices, as Megatron does it (https://arxiv.org/abs/1909.08053).

Each device has a part of the columns of one matrix and of the rows of the next. The operators f and g come before and
after: f sums gradients over the devices, g sums outputs. Without accelerators XLA makes four devices of the CPU. The
losses are those of one device.

    python examples/gallery/tensor_parallelism.py picture.png
"""

import os
import sys
from pathlib import Path

os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=4")  # read when JAX first looks for devices
sys.path.insert(0, str(Path(__file__).parent.parent))

import jax
import jax.numpy as jnp
import numpy as np
import optax
from matplotlib.figure import Figure
from sklearn.datasets import load_digits
from tensor_parallel import AXIS, CopyToRegion, ReduceFromRegion
from tqdm import trange


def loss(params, images, labels, f=lambda x: x, g=lambda x: x):
    features = jax.nn.relu(images @ params["into"])
    hidden = jax.nn.relu(f(features) @ params["first"])
    return optax.softmax_cross_entropy_with_integer_labels(g(hidden @ params["second"]), labels).mean()


def on_one(params, images, labels):
    return jax.value_and_grad(loss)(params, images, labels)


def on_all(params, images, labels):
    """Compute the same with f and g, each device with its shard of the parameters."""
    mesh = jax.make_mesh((len(jax.devices()),), (AXIS,), axis_types=(jax.sharding.AxisType.Auto,))
    spread = {"into": jax.P(), "first": jax.P(None, AXIS), "second": jax.P(AXIS, None)}

    def inside(params, images, labels):
        return jax.value_and_grad(loss)(params, images, labels, CopyToRegion.apply, ReduceFromRegion.apply)

    run = jax.shard_map(inside, mesh=mesh, in_specs=(spread, jax.P(), jax.P()), out_specs=(jax.P(), spread))
    return run(params, images, labels)


def train(loss_and_grads, steps=200, show=False):
    """Return the losses, and the parameters with the devices that hold them."""
    images, labels = load_digits(return_X_y=True)
    images, rng = (images / 16).astype(np.float32), np.random.default_rng(0)
    params = {
        name: jnp.asarray(rng.normal(size=size) / np.sqrt(size[0]), jnp.float32)
        for name, size in {"into": (64, 32), "first": (32, 128), "second": (128, 10)}.items()
    }
    optimiser = optax.adam(2e-3)

    @jax.jit
    def step(params, state, images, labels):
        value, grads = loss_and_grads(params, images, labels)
        updates, state = optimiser.update(grads, state)
        return optax.apply_updates(params, updates), state, value

    state, losses = optimiser.init(params), []
    for _ in trange(steps, desc=loss_and_grads.__name__, disable=None if show else True):
        batch = rng.choice(len(images), 64)
        params, state, value = step(params, state, images[batch], labels[batch])
        losses.append(float(value))
    return np.array(losses), params


def main(path="tensor_parallelism.png"):
    (alone, _), (together, params) = train(on_one, show=True), train(on_all, show=True)
    shards = params["first"].addressable_shards
    figure = Figure(figsize=(9, 3.5), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(2, 1))
    left.plot(alone, lw=5, color="lightgray", label="one device")
    left.plot(together, lw=1, label=f"{len(shards)} devices")
    left.set(title=f"The losses differ by {np.abs(alone - together).max():.0e}", xlabel="step", ylabel="loss")
    left.legend(frameon=False)
    right.bar([str(shard.device.id) for shard in shards], [shard.data.shape[1] for shard in shards])
    right.set(title="Hidden units", xlabel="device")
    figure.savefig(path, dpi=120)
    print(f"{len(shards)} devices, the last loss {together[-1]:.4f}; on one {alone[-1]:.4f}")


if __name__ == "__main__":
    main(*sys.argv[1:2])
