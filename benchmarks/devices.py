"""Devices: a tensor-parallel MLP on four forced devices, next to the same on one and next to PyTorch.

python -m benchmarks.devices [--rounds 15]

The hidden layer is split over the devices inside shard_map; each layer is a Function whose backward leaves the sum over
the devices to fnjax. By hand, custom_vjp needs that psum written out. Four devices share the two cores, so
that the ratio to one device shows what the splitting costs, not what it gains. Goal: as fast as custom_vjp.
"""

import os

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=4"

import importlib.util
import sys

import jax
import numpy as np
from jax.sharding import AxisType, PartitionSpec

import fnjax
from benchmarks import harness

AXIS, BATCH, WIDTH, HIDDEN, RATE = "model", 256, 512, 2048, 0.01


class Block(fnjax.Function):
    """swish(x u) v, which keeps x alone and computes the rest again; each device has its share of u and v."""

    @staticmethod
    def forward(ctx, x, u, v):
        ctx.save_for_backward(x, u, v)
        h = x @ u
        return (h * jax.nn.sigmoid(h)) @ v

    @staticmethod
    def backward(ctx, grad_output):
        return block_backward(ctx.saved_tensors, grad_output)


def block_forward(x, u, v):
    h = x @ u
    return (h * jax.nn.sigmoid(h)) @ v, (x, u, v)


def block_backward(saved, grad_output):
    x, u, v = saved
    h = x @ u
    s = jax.nn.sigmoid(h)
    grad_h = (grad_output @ v.T) * (s * (1 + h * (1 - s)))
    return grad_h @ u.T, x.T @ grad_h, (h * s).T @ grad_output


def by_hand(axis):
    """Build the same step with custom_vjp; with devices, gradients are summed over `axis`."""
    block = jax.custom_vjp(lambda *args: block_forward(*args)[0])

    def backward(saved, grad_output):
        grad_x, *others = block_backward(jax.lax.optimization_barrier(saved), grad_output)
        return (grad_x if axis is None else jax.lax.psum(grad_x, axis)), *others

    block.defvjp(block_forward, backward)
    return block


def four_devices(block):
    mesh = jax.make_mesh((4,), (AXIS,), axis_types=(AxisType.Auto,))
    split = (PartitionSpec(), PartitionSpec(None, AXIS), PartitionSpec(AXIS))

    def summed(x, u, v):
        return jax.lax.psum(block(x, u, v), AXIS)

    return jax.shard_map(summed, mesh=mesh, in_specs=split, out_specs=PartitionSpec())


def step(layer):
    def run(parameters, x, y):
        def loss(parameters):
            hidden = x
            for u, v in parameters:
                hidden = layer(hidden, u, v)
            return ((hidden - y) ** 2).mean()

        value, grads = jax.value_and_grad(loss)(parameters)
        return value, jax.tree.map(lambda p, g: p - RATE * g, parameters, grads)

    return run


def numbers():
    rng = np.random.default_rng(0)

    def draw(*shape):
        return (rng.normal(size=shape) / shape[0] ** 0.5).astype(np.float32)

    return [(draw(WIDTH, HIDDEN), draw(HIDDEN, WIDTH)) for _ in range(2)], draw(BATCH, WIDTH), draw(BATCH, WIDTH)


def in_torch(parameters, x, y):
    import torch

    class TorchBlock(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, u, v):
            ctx.save_for_backward(x, u, v)
            h = x @ u
            return (h * torch.sigmoid(h)) @ v

        @staticmethod
        def backward(ctx, grad_output):
            x, u, v = ctx.saved_tensors
            h = x @ u
            s = torch.sigmoid(h)
            grad_h = (grad_output @ v.T) * (s * (1 + h * (1 - s)))
            return grad_h @ u.T, x.T @ grad_h, (h * s).T @ grad_output

    torch.set_num_threads(harness.CORES)
    leaves = [torch.tensor(p, requires_grad=True) for pair in parameters for p in pair]
    x, y = torch.tensor(x), torch.tensor(y)

    def run():
        hidden = x
        for u, v in zip(leaves[::2], leaves[1::2], strict=True):
            hidden = TorchBlock.apply(hidden, u, v)
        value = ((hidden - y) ** 2).mean()
        grads = torch.autograd.grad(value, leaves)
        with torch.no_grad():
            return value, torch._foreach_add(leaves, grads, alpha=-RATE)

    return run


def measure(report, options):
    if len(jax.devices()) < 4:
        report.note(f"{len(jax.devices())} device(s) only: nothing to split over")
        return
    args = numbers()
    layers = {
        "fnjax, four devices": four_devices(Block.apply),
        "custom_vjp, four devices": four_devices(by_hand(AXIS)),
        "fnjax, one device": Block.apply,
        "custom_vjp, one device": by_hand(None),
    }
    cases = {}
    for name, layer in layers.items():
        compiled = jax.jit(step(layer)).lower(*args).compile()
        placed = jax.device_put(args, compiled.input_shardings[0])
        cases[name] = lambda f=compiled, args=placed: jax.block_until_ready(f(*args))
    want = cases["custom_vjp, one device"]()
    for name in layers:
        compare(want, cases[name]())
    first, other = list(layers)[:2]
    alone = harness.interleaved({first: cases[first], other: cases[other]}, 3 * options.rounds)  # no PyTorch yet
    if importlib.util.find_spec("torch"):
        cases["PyTorch eager, one device"] = in_torch(*args)
        value, new = cases["PyTorch eager, one device"]()
        compare(want, (value.detach().numpy(), [x.numpy() for x in new]))
    times = harness.interleaved(cases, options.rounds, settle=0.05)
    rows = ((name, round(harness.median_us(times, name)), harness.ratio(times, name, first)) for name in cases)
    report.table("Tensor-parallel MLP", ("", "step µs", "of fnjax on four"), rows)
    report.goal("four devices, fnjax beside custom_vjp", harness.ratio(alone, first, other), 1.05)


def compare(ours, theirs):
    for a, b in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
        np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=2e-3, atol=2e-5)


if __name__ == "__main__":
    harness.use_two_cores()
    sys.exit(harness.run(measure, __doc__, rounds=15))
