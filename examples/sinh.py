"""Sinh in two forms, one of which PyTorch gets wrong at second order: it saves what forward computed on its way.

PyTorch takes such intermediates for constants, silently; returning them as extra outputs fixes that. In fnjax both
forms are right, so the extra outputs can go.
"""

import jax
import jax.numpy as jnp
import numpy as np

import fnjax


class SinhIntermediates(fnjax.Function):
    """Saves two intermediates."""

    @staticmethod
    def forward(ctx, x):
        up, down = jnp.exp(x), jnp.exp(-x)
        ctx.save_for_backward(up, down)
        return (up - down) / 2

    @staticmethod
    def backward(ctx, grad_output):
        up, down = ctx.saved_tensors
        return grad_output * (up + down) / 2


class SinhOutputs(fnjax.Function):
    """Returns them too, so that backward gets their gradients."""

    @staticmethod
    def forward(ctx, x):
        up, down = jnp.exp(x), jnp.exp(-x)
        ctx.save_for_backward(up, down)
        return (up - down) / 2, up, down

    @staticmethod
    def backward(ctx, grad_output, grad_up, grad_down):
        up, down = ctx.saved_tensors
        return grad_output * (up + down) / 2 + grad_up * up - grad_down * down


def check(wrap=lambda f: f):
    """Return value and two derivatives of sinh² at 0.7 next to the closed forms; `wrap` may be jax.jit."""
    functions = {
        "intermediates saved": lambda x: SinhIntermediates.apply(x) ** 2,
        "returned as outputs": lambda x: SinhOutputs.apply(x)[0] ** 2,
    }
    sinh, cosh = np.sinh(0.7), np.cosh(0.7)
    expected = {
        "value": sinh**2,
        "first derivative": 2 * sinh * cosh,
        "second derivative": 2 * (cosh**2 + sinh**2),  # PyTorch's first form: 2 cosh²
    }
    results = {}
    for title, f in functions.items():
        for (name, number), g in zip(expected.items(), (f, jax.grad(f), jax.grad(jax.grad(f))), strict=True):
            results[f"{title}, {name}"] = (wrap(g)(np.float32(0.7)), number)
    return results


def main():
    for name, (got, expected) in check().items():
        print(f"{name}: {got:.4f}, expected {expected:.4f}")


if __name__ == "__main__":
    main()
