"""A SciPy routine inside JAX, with a gradient: the Bessel functions of the first kind, of whole order.

JAX calls SciPy through `jax.pure_callback`, which has no derivative. The Function gives it one, by the recurrence
J'ₙ = (Jₙ₋₁ - Jₙ₊₁) / 2 (https://dlmf.nist.gov/10.6.E1). Backward calls the Function, hence every order of derivative.
"""

import jax
import jax.numpy as jnp
import numpy as np
import scipy.special

import fnjax


class BesselJ(fnjax.Function):
    """Jₙ(x) for an array x and a integer n."""

    @staticmethod
    def forward(ctx, n, x):
        ctx.n = n
        ctx.save_for_backward(x)

        def routine(x):
            return scipy.special.jv(n, np.asarray(x)).astype(x.dtype)

        return jax.pure_callback(routine, jax.ShapeDtypeStruct(x.shape, x.dtype), x, vmap_method="expand_dims")

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return None, grad_output * (BesselJ.apply(ctx.n - 1, x) - BesselJ.apply(ctx.n + 1, x)) / 2


def check(wrap=lambda f: f):
    """Return value and two derivatives of J₂ next to SciPy's own derivatives; `wrap` may be jax.jit."""
    x = np.linspace(0.5, 20, 40, dtype=np.float32)

    def derivatives(f, order=3):
        for _ in range(order):
            yield wrap(f)(x)
            f = jax.grad(lambda x, f=f: jnp.sum(f(x)))

    return {
        f"derivative {order}": (got, scipy.special.jvp(2, np.float64(x), order))
        for order, got in enumerate(derivatives(lambda x: BesselJ.apply(2, x)))
    }


def main():
    for name, (got, expected) in check().items():
        print(f"{name}: off by {np.abs(got - expected).max():.0e}")


if __name__ == "__main__":
    main()
