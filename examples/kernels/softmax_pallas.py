"""A fused softmax in Pallas with a backward kernel, which is a Function too: so there is a second derivative.

Forward reads each row once and writes it once; backward needs the output only, and does the same. On a CPU Pallas
interprets the kernels; elsewhere it compiles them, on a GPU through Triton.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import pallas as pl

import fnjax

ROWS = 8  # of a block


def softmax_kernel(x_ref, y_ref):
    x = x_ref[...]
    e = jnp.exp(x - jnp.max(x, axis=1, keepdims=True))
    y_ref[...] = e / jnp.sum(e, axis=1, keepdims=True)


def softmax_grad_kernel(y_ref, grad_ref, out_ref):
    y, grad = y_ref[...], grad_ref[...]
    out_ref[...] = y * (grad - jnp.sum(y * grad, axis=1, keepdims=True))


def by_platform():
    """Return the options of pallas_call for the platform; its Mosaic GPU backend has no reduction along an axis."""
    backend = jax.default_backend()
    if backend != "gpu":
        return {"interpret": backend == "cpu"}
    from jax.experimental.pallas import triton

    return {"compiler_params": triton.CompilerParams()}


def by_rows(kernel, *arrays):
    """Run a kernel on blocks of rows; the last block is filled up with zeros."""
    rows, columns = arrays[0].shape
    missing = -rows % ROWS
    padded = [jnp.pad(x, ((0, missing), (0, 0))) for x in arrays]
    block = pl.BlockSpec((ROWS, columns), lambda i: (i, 0))
    run = pl.pallas_call(
        kernel,
        grid=((rows + missing) // ROWS,),
        in_specs=[block] * len(arrays),
        out_specs=block,
        out_shape=jax.ShapeDtypeStruct(padded[0].shape, padded[0].dtype),
        **by_platform(),
    )
    return run(*padded)[:rows]


class Softmax(fnjax.Function):
    """The softmax of each row of an array of shape (rows, columns)."""

    @staticmethod
    def forward(ctx, x):
        y = by_rows(softmax_kernel, x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return SoftmaxGrad.apply(y, grad_output)


class SoftmaxGrad(fnjax.Function):
    """y (g - Σ y g), which is linear and symmetric in g."""

    @staticmethod
    def forward(ctx, y, grad_output):
        ctx.save_for_backward(y, grad_output)
        return by_rows(softmax_grad_kernel, y, grad_output)

    @staticmethod
    def backward(ctx, grad):
        y, grad_output = ctx.saved_tensors
        along_g = jnp.sum(y * grad_output, axis=1, keepdims=True)
        along_grad = jnp.sum(y * grad, axis=1, keepdims=True)
        return grad * (grad_output - along_g) - grad_output * along_grad, SoftmaxGrad.apply(y, grad)


def check(wrap=lambda f: f):
    """Return the kernels' results, and those of jax.nn.softmax; `wrap` may be jax.jit."""
    rng = np.random.default_rng(0)
    x, w, v = (rng.normal(size=(13, 32)).astype(np.float32) for _ in range(3))

    def derivatives(softmax):
        def loss(x):
            return jnp.sum(w * softmax(x) ** 2)

        return softmax, jax.grad(loss), jax.grad(lambda x: jnp.vdot(jax.grad(loss)(x), v))

    names = ("value", "gradient", "second derivative")
    return {
        name: (wrap(mine)(x), jaxs(x))
        for name, mine, jaxs in zip(names, derivatives(Softmax.apply), derivatives(jax.nn.softmax), strict=True)
    }


def main():
    for name, (got, expected) in check().items():
        print(f"{name}: off by {np.abs(got - expected).max():.0e}")


if __name__ == "__main__":
    main()
