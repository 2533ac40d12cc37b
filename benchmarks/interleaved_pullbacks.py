"""Two pullbacks of one staged call, taken before either is used: hand-written jax.custom_vjp against fnjax.

Both have the same rules, which save only what the gradients that are asked for need (PyTorch's `needs_input_grad`;
`perturbed` under custom_vjp's symbolic_zeros). Run it: python benchmarks/interleaved_pullbacks.py
"""

import argparse
import sys

import jax
import jax.numpy as jnp
import numpy as np

import fnjax


class Product(fnjax.Function):
    @staticmethod
    def forward(ctx, x, y):
        needs_x, needs_y = ctx.needs_input_grad
        ctx.save_for_backward(x if needs_y else None, y if needs_x else None)
        return x * y

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return None if y is None else grad_output * y, None if x is None else grad_output * x


@jax.custom_vjp
def product(x, y):
    return x * y


def product_fwd(x, y):
    return x.value * y.value, (x.value if y.perturbed else None, y.value if x.perturbed else None)


def product_bwd(residuals, ct):
    x, y = residuals
    return None if y is None else ct * y, None if x is None else ct * x


product.defvjp(product_fwd, product_bwd, symbolic_zeros=True)


def trial(f, x, y, ct):
    """Take a pullback in x, then one in y; then use the first."""
    _, in_x = jax.vjp(lambda x: f(x, y), x)
    _, in_y = jax.vjp(lambda y: f(x, y), y)
    return in_x(ct)[0], in_y(ct)[0]


def main():
    print(f"JAX {jax.__version__}, Python {sys.version.split()[0]}, fnjax {fnjax.__version__}")
    x, y = jnp.array([1.0, 2.0, 3.0]), jnp.array([10.0, 20.0, 30.0])
    wanted = {"jit": (y, x), "jit(vmap)": (jnp.full(3, y.sum()), jnp.full(3, x.sum()))}
    for where, wrap in {"jit": jax.jit, "jit(vmap)": lambda f: jax.jit(jax.vmap(f, (0, None)))}.items():
        for name, f in {"custom_vjp": product, "fnjax": Product.apply}.items():
            ct = jnp.ones(3) if where == "jit" else jnp.ones((3, 3))
            try:
                got = trial(wrap(f), x, y, ct)
                right = all(np.array_equal(g, w) for g, w in zip(got, wanted[where], strict=True))
                print(f"{where:10} {name:11} {'right' if right else f'WRONG: {got}, wanted {wanted[where]}'}")
            except Exception as e:  # noqa: BLE001 - whatever it raises is the result
                print(f"{where:10} {name:11} {type(e).__name__}: {str(e).splitlines()[0][:100]}")


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    main()
