"""Megatron's tensor parallelism: an MLP whose hidden units are sharded over devices, with its two operators f and g.

Without accelerators: XLA_FLAGS=--xla_force_host_platform_device_count=4 python examples/tensor_parallel.py
"""

import jax
import jax.numpy as jnp
import numpy as np

import fnjax

AXIS = "model"


class CopyToRegion(fnjax.Function):
    """f: identity, whose gradient is summed over the devices."""

    @staticmethod
    def forward(ctx, x):
        return jax.lax.pcast(x, AXIS, to="varying")  # a copy for each device, and each copy has its own gradient

    @staticmethod
    def backward(ctx, grad_output):
        return jax.lax.psum(grad_output, AXIS)  # PyTorch: dist.all_reduce(grad_output)


class ReduceFromRegion(fnjax.Function):
    """g: sum over the devices, whose gradient is the identity."""

    @staticmethod
    def forward(ctx, x):
        return jax.lax.psum(x, AXIS)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


def loss(x, a, b):
    return jnp.mean(jnp.tanh(jnp.tanh(x @ a) @ b) ** 2)


def parallel_loss(x, a, b):
    """Compute the same on one device, which holds some columns of a and rows of b."""
    x = CopyToRegion.apply(x)
    return jnp.mean(jnp.tanh(ReduceFromRegion.apply(jnp.tanh(x @ a) @ b)) ** 2)


def on_devices(check_vma):
    """Compute the loss and its gradients, each device with its shards of a and b."""
    mesh = jax.make_mesh((len(jax.devices()),), (AXIS,), axis_types=(jax.sharding.AxisType.Auto,))
    specs = (jax.P(), jax.P(None, AXIS), jax.P(AXIS, None))
    inside = jax.value_and_grad(parallel_loss, argnums=(0, 1, 2))
    return jax.shard_map(inside, mesh=mesh, in_specs=specs, out_specs=(jax.P(), specs), check_vma=check_vma)


def data(dtype=np.float32):
    rng = np.random.default_rng(0)
    return [rng.normal(size=size).astype(dtype) for size in ((4, 6), (6, 8), (8, 6))]


def check(wrap=lambda f: f):
    """Return the results of all devices, and those of one device; `wrap` may be jax.jit."""
    value, grads = jax.value_and_grad(loss, argnums=(0, 1, 2))(*data())
    results = {}
    for check_vma in (True, False):  # whether JAX checks what differs between the devices
        mode = "checked" if check_vma else "unchecked"
        got_value, got_grads = wrap(on_devices(check_vma))(*data())
        results[f"{mode} loss"] = got_value, value
        for name, got, expected in zip("xab", got_grads, grads, strict=True):
            results[f"{mode} gradient for {name}"] = got, expected
    return results


def main():
    for name, (got, expected) in check().items():
        norm = np.linalg.norm(np.asarray(got))
        print(f"{name}: norm {norm:.4f}, off by {np.abs(np.asarray(got) - expected).max():.0e}")


if __name__ == "__main__":
    main()
