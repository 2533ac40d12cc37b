"""Square and Exp, differentiated as often as one likes: one saves its input, the other its output.

Backward is made of operations that JAX can differentiate, and that is all that higher derivatives need, as in PyTorch.
"""

import jax
import jax.numpy as jnp
import numpy as np

import fnjax


class Square(fnjax.Function):
    """x², which saves its input."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * 2 * x


class Exp(fnjax.Function):
    """The exponential, which saves its output."""

    @staticmethod
    def forward(ctx, x):
        y = jnp.exp(x)
        ctx.save_for_backward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return grad_output * y


def check(wrap=lambda f: f):
    """Return value and three derivatives at 0.7 next to the closed forms; `wrap` may be jax.jit."""

    def derivatives(f, order=4):
        results = []
        for _ in range(order):
            results.append(wrap(f)(np.float32(0.7)))
            f = jax.grad(f)
        return np.array(results)

    expected = np.exp(0.49) * np.array([1, 1.4, 2 + 1.4**2, 6 * 1.4 + 1.4**3])  # exp(x²)
    return {
        "Square": (derivatives(Square.apply), np.array([0.49, 1.4, 2, 0])),
        "Exp": (derivatives(Exp.apply), np.full(4, np.exp(0.7))),
        "Exp of Square": (derivatives(lambda x: Exp.apply(Square.apply(x))), expected),
    }


def main():
    for name, (got, expected) in check().items():
        print(f"{name}: {np.round(np.float64(got), 4).tolist()}, off by {np.abs(got - expected).max():.0e}")


if __name__ == "__main__":
    main()
