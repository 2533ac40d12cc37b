"""Megatron's sequence parallelism: outside the tensor-parallel MLP each device holds a part of the sequence.

Without accelerators: XLA_FLAGS=--xla_force_host_platform_device_count=4 python examples/sequence_parallel.py
"""

import jax
import jax.numpy as jnp
import numpy as np

import fnjax

AXIS = "model"


class GatherSequence(fnjax.Function):
    """All-gather along the sequence, whose gradient is reduce-scattered."""

    @staticmethod
    def forward(ctx, x):
        return jax.lax.all_gather(x, AXIS, tiled=True)  # PyTorch: dist.all_gather_into_tensor

    @staticmethod
    def backward(ctx, grad_output):
        return jax.lax.psum_scatter(grad_output, AXIS, tiled=True)  # PyTorch: dist.reduce_scatter_tensor


class ScatterSequence(fnjax.Function):
    """Reduce-scatter along the sequence, whose gradient is all-gathered."""

    @staticmethod
    def forward(ctx, x):
        return jax.lax.psum_scatter(x, AXIS, tiled=True)

    @staticmethod
    def backward(ctx, grad_output):
        return jax.lax.all_gather(grad_output, AXIS, tiled=True)


def normalised(x):
    return (x - x.mean(-1, keepdims=True)) / x.std(-1, keepdims=True)


def block(x, a, b):
    """Compute a residual block of x (sequence, width), a (width, hidden) and b (hidden, width)."""
    return x + jnp.tanh(normalised(x) @ a) @ b


def parallel_block(x, a, b):
    """Compute the same on one device, which holds a shard of the sequence and of the hidden units."""
    whole = GatherSequence.apply(normalised(x))
    return x + ScatterSequence.apply(jnp.tanh(whole @ a) @ b)


def on_devices():
    """Run parallel_block on all devices, each with its slices of x, a and b."""
    mesh = jax.make_mesh((len(jax.devices()),), (AXIS,), axis_types=(jax.sharding.AxisType.Auto,))
    specs = (jax.P(AXIS), jax.P(None, AXIS), jax.P(AXIS, None))
    return jax.shard_map(parallel_block, mesh=mesh, in_specs=specs, out_specs=jax.P(AXIS))


def loss(f):
    return lambda *args: jnp.mean(jnp.tanh(f(*args)) ** 2)


def data(dtype=np.float32):
    rng = np.random.default_rng(0)
    return [rng.normal(size=size).astype(dtype) for size in ((8, 6), (6, 8), (8, 6))]


def check(wrap=lambda f: f):
    """Return the results of all devices, and those of one device; `wrap` may be jax.jit."""
    every = (0, 1, 2)
    results = {"output": (wrap(on_devices())(*data()), block(*data()))}
    grads = jax.grad(loss(block), every)(*data())
    for name, got, expected in zip("xab", wrap(jax.grad(loss(on_devices()), every))(*data()), grads, strict=True):
        results[f"gradient for {name}"] = got, expected
    return results


def main():
    for name, (got, expected) in check().items():
        norm = np.linalg.norm(np.asarray(got))
        print(f"{name}: norm {norm:.4f}, off by {np.abs(np.asarray(got) - expected).max():.0e}")


if __name__ == "__main__":
    main()
