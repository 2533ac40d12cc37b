"""LinearFunction and MyReLU, the first Functions of many: optional arguments, and gradients only where they are needed.

At 0 this ReLU has the derivative 1, since backward clears where x < 0; `jax.nn.relu` has 0 there.
"""

import jax
import jax.numpy as jnp
import numpy as np

import fnjax


class LinearFunction(fnjax.Function):
    """x of shape (batch, in) times the transpose of weight (out, in), plus bias (out,) if there is one."""

    @staticmethod
    def forward(ctx, x, weight, bias=None):
        ctx.save_for_backward(x, weight, bias)
        return x @ weight.T if bias is None else x @ weight.T + bias[None]

    @staticmethod
    def backward(ctx, grad_output):
        x, weight, bias = ctx.saved_tensors
        grad_x = grad_weight = grad_bias = None
        if ctx.needs_input_grad[0]:
            grad_x = grad_output @ weight
        if ctx.needs_input_grad[1]:
            grad_weight = grad_output.T @ x
        if bias is not None and ctx.needs_input_grad[2]:
            grad_bias = grad_output.sum(0)
        return grad_x, grad_weight, grad_bias


class MyReLU(fnjax.Function):
    """max(x, 0)."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return jnp.maximum(x, 0)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return jnp.where(x < 0, 0, grad_output)  # PyTorch: grad = grad_output.clone(); grad[x < 0] = 0


def total(x, weight, bias=None):
    return (MyReLU.apply(LinearFunction.apply(x, weight, bias)) ** 2).sum()


X = np.array([[1.0, 2.0], [-1.0, 0.5], [0.0, -3.0]], np.float32)
WEIGHT = np.array([[1.0, -1.0], [0.5, 2.0]], np.float32)
BIAS = np.array([0.5, -1.0], np.float32)


def check(wrap=lambda f: f):
    """Return fnjax's results, and the same by NumPy; `wrap` may be jax.jit."""
    layer = X @ WEIGHT.T + BIAS
    grads = wrap(jax.grad(total, argnums=(0, 1, 2)))(X, WEIGHT, BIAS)
    grad = 2 * np.maximum(layer, 0)  # of total for the layer's output
    no_bias = wrap(jax.grad(total, argnums=1))(X, WEIGHT)
    slopes = wrap(jax.vmap(jax.grad(MyReLU.apply)))(np.arange(-1.0, 2.0))
    return {
        "value": (wrap(total)(X, WEIGHT, BIAS), np.sum(np.maximum(layer, 0) ** 2)),
        "gradient for x": (grads[0], grad @ WEIGHT),
        "gradient for the weight": (grads[1], grad.T @ X),
        "gradient for the bias": (grads[2], grad.sum(0)),
        "gradient for the weight, no bias": (no_bias, 2 * np.maximum(X @ WEIGHT.T, 0).T @ X),
        "slope of MyReLU at -1, 0, 1": (slopes, np.array([0, 1, 1])),
    }


def main():
    for name, (got, expected) in check().items():
        print(f"{name}: {np.asarray(got).tolist()}, expected {np.asarray(expected).tolist()}")


if __name__ == "__main__":
    main()
