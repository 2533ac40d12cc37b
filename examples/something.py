"""f(u, v) = |u v| as old code writes it, with `ctx.saved_variables`, the name that `saved_tensors` had before.

The name works and warns, as in PyTorch. Unlike PyTorch, a jitted function warns when it is traced, not at each call.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np

import fnjax


class Something(fnjax.Function):
    """|u v|, whose derivatives are sign(u v) v and sign(u v) u."""

    @staticmethod
    def forward(ctx, u, v):
        ctx.save_for_backward(u, v)
        return jnp.abs(u * v)

    @staticmethod
    def backward(ctx, grad_output):
        u, v = ctx.saved_variables
        sign = jnp.sign(u * v)
        return grad_output * sign * v, grad_output * sign * u


def total(u, v):
    return Something.apply(u, v).sum()


U = np.array([1.0, -2.0, 3.0, 0.0], np.float32)
V = np.array([4.0, 5.0, -6.0, 7.0], np.float32)


def check(wrap=lambda f: f):
    """Return fnjax's results, the closed forms, and whether the older name warns; `wrap` may be jax.jit."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        grad_u, grad_v = wrap(jax.grad(total, argnums=(0, 1)))(U, V)
        mixed = wrap(jax.grad(lambda u, v: jax.grad(total)(u, v).sum(), argnums=1))(U, V)
    warned = {str(w.message) for w in caught if w.category is DeprecationWarning}
    return {
        "value": (wrap(Something.apply)(U, V), np.abs(U * V)),
        "gradient for u": (grad_u, np.sign(U * V) * V),
        "gradient for v": (grad_v, np.sign(U * V) * U),
        "mixed second derivative": (mixed, np.sign(U * V)),
        "the older name warned": (any("saved_variables" in text for text in warned), True),
    }


def main():
    for name, (got, expected) in check().items():
        print(f"{name}: {np.asarray(got).tolist()}, expected {np.asarray(expected).tolist()}")


if __name__ == "__main__":
    main()
