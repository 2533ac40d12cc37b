"""An implicit function: the root x of f(x, a) = 0, found by Newton's iteration and differentiated without it.

The implicit function theorem gives dx/da = -f_a / f_x at the root. The root is saved as an output, so second
derivatives come from the same rule; JAX by itself cannot go backwards through `while_loop` at all.
"""

import jax
import jax.numpy as jnp
import numpy as np

import fnjax


class Root(fnjax.Function):
    """The scalar x with f(x, a) = 0 near `start`; `f` is a plain function and has no gradient."""

    @staticmethod
    def forward(ctx, f, a, start):
        def improve(state):
            x, _ = state
            step = f(x, a) / jax.grad(f)(x, a)
            return x - step, step

        first = (start, jnp.full_like(start, jnp.inf))
        x, _ = jax.lax.while_loop(lambda state: jnp.abs(state[1]) > 1e-6, improve, first)
        ctx.f = f
        ctx.save_for_backward(x, a)
        return x

    @staticmethod
    def backward(ctx, grad_output):
        x, a = ctx.saved_tensors
        f_x, f_a = jax.grad(ctx.f, argnums=(0, 1))(x, a)
        return None, -grad_output * f_a / f_x, None


def kepler(x, a):
    """Return x - e sin x - m, zero where Kepler's equation holds; a = (m, e) are mean anomaly and eccentricity."""
    return x - a[1] * jnp.sin(x) - a[0]


def anomaly(a):
    return Root.apply(kepler, a, jnp.full_like(a[0], 1.0))


A = np.array([0.8, 0.3], np.float32)


def check(wrap=lambda f: f):
    """Return fnjax's results, and the closed forms in terms of the root; `wrap` may be jax.jit."""
    x, (m, e) = wrap(anomaly)(A), A
    sin, cos = np.sin(x), np.cos(x)
    f_x = 1 - e * cos
    x_m, x_e = 1 / f_x, sin / f_x
    mixed = (cos * x_m * f_x - sin * e * sin * x_m) / f_x**2
    hessian = [[-e * sin * x_m / f_x**2, mixed], [mixed, (cos * x_e * f_x + sin * cos - sin * e * sin * x_e) / f_x**2]]
    many = np.stack([A, A + np.float32(0.1)])
    return {
        "x - e sin x": (x - e * sin, m),
        "gradient": (wrap(jax.grad(anomaly))(A), np.array([x_m, x_e])),
        "Hessian": (wrap(jax.jacrev(jax.grad(anomaly)))(A), np.array(hessian)),
        "gradients of two roots by vmap": (
            wrap(jax.vmap(jax.grad(anomaly)))(many),
            np.array([jax.grad(anomaly)(a) for a in many]),
        ),
    }


def main():
    print(f"root: {anomaly(A):.4f}")
    for name, (got, expected) in check().items():
        print(f"{name}: {np.round(np.float64(got), 4).tolist()}, off by {np.abs(got - expected).max():.0e}")


if __name__ == "__main__":
    main()
