"""Five Functions of Liger-Kernel, as the package has them: their launchers and Triton kernels run in JAX.

Needs the package's files, and neither PyTorch nor Triton: pip install --no-deps liger-kernel
"""

from importlib.util import find_spec

import jax
import jax.numpy as jnp
import numpy as np

import fnjax.torch

PACKAGE = "liger_kernel"


def layer_norm(x, weight, bias):
    """LayerNorm over the last axis."""
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) * jax.lax.rsqrt(variance + 1e-5) * weight + bias


def rms_norm(x, weight):
    """RMSNorm over the last axis."""
    return x * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True) + 1e-6) * weight


# Module, class, arguments after the arrays, the same in jax.numpy, shapes of the arrays.
FUNCTIONS = [
    ("softmax", "LigerSoftmaxFunction", (), jax.nn.softmax, [(4, 8)]),
    ("geglu", "LigerGELUMulFunction", (), lambda a, b: jax.nn.gelu(a) * b, [(4, 8), (4, 8)]),
    ("relu_squared", "LigerReLUSquaredFunction", (), lambda x: jax.nn.relu(x) ** 2, [(4, 8)]),
    ("layer_norm", "LigerLayerNormFunction", (1e-5,), layer_norm, [(4, 8), (8,), (8,)]),
    ("rms_norm", "LigerRMSNormFunction", (1e-6, 0.0, "llama", False), rms_norm, [(4, 8), (8,)]),
]


def load(module, name):
    """Return a Function of the package as a JAX function; nothing of the package is imported by Python itself."""
    return getattr(fnjax.torch.import_module(f"{PACKAGE}.ops.{module}"), name).apply


def differences(module, name, options, reference, shapes):
    """Return how far outputs, gradients under jit, and outputs of a batch under vmap are from the reference's."""
    function = load(module, name)
    draw = np.random.default_rng(0)
    weight, *arrays = (jnp.asarray(draw.normal(size=shape), jnp.float32) for shape in [shapes[0], *shapes])

    def compute(call, x, *rest):
        gradients = jax.vjp(call, x, *rest)[1](weight)
        batch = jax.vmap(call, in_axes=(0, *[None] * len(rest)))(jnp.stack([x, 2 * x]), *rest)
        return call(x, *rest), gradients, batch

    found = jax.jit(compute, static_argnums=0)(lambda *given: function(*given, *options), *arrays)
    wanted = jax.jit(compute, static_argnums=0)(reference, *arrays)
    return [
        max(float(jnp.abs(a - b).max()) for a, b in zip(*map(jax.tree.leaves, pair), strict=True))
        for pair in zip(found, wanted, strict=True)
    ]


def main():
    """Print the differences of each Function, or how to get the package."""
    if find_spec(PACKAGE) is None:
        print("Liger-Kernel is not installed: pip install --no-deps liger-kernel")
        return
    for case in FUNCTIONS:
        print(f"{case[1]:26}", *(f"{d:.1e}" for d in differences(*case)))


if __name__ == "__main__":
    main()
