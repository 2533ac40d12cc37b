"""A Function with two outputs, image and alpha, of which the loss uses only the image.

The gradient of alpha then arrives in backward as zeros, or as None after `ctx.set_materialize_grads(False)`, which
saves the work that zeros would cause.
"""

import jax
import jax.numpy as jnp
import numpy as np

import fnjax

was_none = []  # for each run of backward: whether the gradient of alpha was None


class Render(fnjax.Function):
    """One layer of fog: alpha = 1 - exp(-density), image = alpha color, for density and color of shape (pixels,)."""

    @staticmethod
    def forward(ctx, color, density):
        alpha = 1 - jnp.exp(-density)
        ctx.save_for_backward(color, alpha)
        return alpha * color, alpha

    @staticmethod
    def backward(ctx, grad_image, grad_alpha):
        was_none.append(grad_alpha is None)
        color, alpha = ctx.saved_tensors
        return grad_image * alpha, (grad_image * color + grad_alpha) * (1 - alpha)


class RenderLazily(Render):
    """The same with None, not zeros, for outputs without a gradient."""

    @staticmethod
    def forward(ctx, color, density):
        ctx.set_materialize_grads(False)
        return Render.forward(ctx, color, density)

    @staticmethod
    def backward(ctx, grad_image, grad_alpha):
        was_none.append(grad_alpha is None)
        color, alpha = ctx.saved_tensors
        grad_color, through = None, 0 if grad_alpha is None else grad_alpha
        if grad_image is not None:
            grad_color, through = grad_image * alpha, through + grad_image * color
        return grad_color, through * (1 - alpha)


COLOR = np.array([0.2, 0.5, 1.0], np.float32)
DENSITY = np.array([0.1, 1.0, 3.0], np.float32)


def compare(function, lazy, wrap):
    was_none.clear()
    gradient = wrap(jax.grad(lambda *args: (function.apply(*args)[0] ** 2).sum(), argnums=(0, 1)))
    grad_color, grad_density = gradient(COLOR, DENSITY)
    seen = was_none[-1]
    of_alpha = wrap(jax.grad(lambda *args: function.apply(*args)[1].sum(), argnums=1))(COLOR, DENSITY)
    alpha = 1 - np.exp(-DENSITY)
    name = function.__name__
    return {
        f"{name}, grad_alpha is None": (seen, lazy),
        f"{name}, gradient for color": (grad_color, 2 * alpha**2 * COLOR),
        f"{name}, gradient for density": (grad_density, 2 * alpha * COLOR**2 * (1 - alpha)),
        f"{name}, the gradient of alpha alone": (of_alpha, 1 - alpha),
    }


def check(wrap=lambda f: f):
    """Return the received gradients and the results, and the closed forms; `wrap` may be jax.jit."""
    return compare(Render, False, wrap) | compare(RenderLazily, True, wrap)


def main():
    for name, (got, expected) in check().items():
        shown = got if isinstance(got, bool) else np.round(np.float64(got), 4).tolist()
        print(f"{name}: {shown}, off by {np.abs(np.float64(got) - expected).max():.0e}")


if __name__ == "__main__":
    main()
