"""A Cholesky decomposition with its own backward, right at second order too.

The factor is saved as an output: its second derivative goes through the same rule. The formula is the symmetric one of
Murray, "Differentiation of the Cholesky decomposition" (2016), which PyTorch and JAX use as well.
"""

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.linalg import solve_triangular

import fnjax


class Cholesky(fnjax.Function):
    """The lower triangular L with L Lᵀ = a, for symmetric positive definite `a` of shape (n, n)."""

    @staticmethod
    def forward(ctx, a):
        factor = jnp.linalg.cholesky(a)
        ctx.save_for_backward(factor)
        return factor

    @staticmethod
    def backward(ctx, grad_output):
        (factor,) = ctx.saved_tensors
        inner = jnp.tril(factor.T @ grad_output)
        inner = inner - 0.5 * jnp.diag(jnp.diag(inner))
        half = solve_triangular(factor, inner.T, lower=True, trans="T")  # L⁻ᵀ Φᵀ
        whole = solve_triangular(factor, half.T, lower=True, trans="T")  # L⁻ᵀ Φ L⁻¹
        return 0.5 * (whole + whole.T)


def log_density(a, y, cholesky=Cholesky.apply):
    """Compute the log density of y under the normal distribution with mean 0 and covariance a, up to 2 pi."""
    factor = cholesky(a)
    white = solve_triangular(factor, y, lower=True)
    return -0.5 * white @ white - jnp.log(jnp.diag(factor)).sum()


A = np.array([[4.0, 2.0, 0.6], [2.0, 3.0, 0.5], [0.6, 0.5, 2.0]], np.float32)
Y = np.array([1.0, -2.0, 0.5], np.float32)
DIRECTION = np.array([[1.0, 0.5, 0.0], [0.5, -1.0, 0.3], [0.0, 0.3, 2.0]], np.float32)


def check(wrap=lambda f: f):
    """Return fnjax's results, and those of closed forms and JAX's own decomposition; `wrap` may be jax.jit."""

    def slope(a, cholesky=Cholesky.apply):  # along one direction: its gradient is a row of second derivatives
        return jnp.vdot(jax.grad(log_density)(a, Y, cholesky), DIRECTION)

    inverse = np.linalg.inv(A)
    u = inverse @ Y
    value = -0.5 * Y @ u - 0.5 * np.log(np.linalg.det(A))
    return {
        "log density": (wrap(log_density)(A, Y), value),
        "gradient": (wrap(jax.grad(log_density))(A, Y), 0.5 * (np.outer(u, u) - inverse)),
        "second derivatives": (wrap(jax.grad(slope))(A), jax.grad(lambda a: slope(a, jnp.linalg.cholesky))(A)),
    }


def main():
    for name, (got, expected) in check().items():
        print(f"{name}: {np.round(np.float64(got), 4).tolist()}, off by {np.abs(got - expected).max():.0e}")


if __name__ == "__main__":
    main()
