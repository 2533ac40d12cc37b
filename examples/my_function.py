"""a + k b + a b with a number k, in the manner of C++ extensions: `ctx.saved_data`, `mark_dirty`, callable needs.

Arrays do not change in JAX: what was done in place returns the new array, and `mark_dirty` may stay where it is.
"""

import jax
import numpy as np

import fnjax


class MyFunction(fnjax.Function):
    """a + k b + a b; k is a number, which `forward` gets as it is."""

    @staticmethod
    def forward(ctx, a, k, b):
        ctx.saved_data["k"] = k
        ctx.save_for_backward(a, b)
        return a + k * b + a * b

    @staticmethod
    def backward(ctx, grad_output):
        a, b = ctx.saved_tensors
        grad_a = grad_output * (1 + b) if ctx.needs_input_grad(0) else None
        grad_b = grad_output * (ctx.saved_data["k"] + a) if ctx.needs_input_grad(2) else None
        return grad_a, None, grad_b


class AddInPlace(fnjax.Function):
    """a + k b, which PyTorch's form writes into a."""

    @staticmethod
    def forward(ctx, a, k, b):
        ctx.saved_data["k"] = k
        ctx.mark_dirty(a)
        return a + k * b

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, None, grad_output * ctx.saved_data["k"]


def total(a, b):
    """Return the result of both Functions, one after the other: a + 3 b after a + 2 b + a b."""
    return AddInPlace.apply(MyFunction.apply(a, 2, b), 3, b).sum()


A = np.array([1.0, -2.0, 0.5], np.float32)
B = np.array([4.0, 3.0, -1.0], np.float32)


def check(wrap=lambda f: f):
    """Return fnjax's results, and the closed forms; `wrap` may be jax.jit."""
    grad_a, grad_b = wrap(jax.grad(total, argnums=(0, 1)))(A, B)
    return {
        "value": (wrap(total)(A, B), np.sum(A + 5 * B + A * B)),
        "gradient for a": (grad_a, 1 + B),
        "gradient for b": (grad_b, 5 + A),
        "gradient for b alone": (wrap(jax.grad(total, argnums=1))(A, B), 5 + A),
    }


def main():
    for name, (got, expected) in check().items():
        print(f"{name}: {np.asarray(got).tolist()}, expected {np.asarray(expected).tolist()}")


if __name__ == "__main__":
    main()
