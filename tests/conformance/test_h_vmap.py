"""Section H without rules: jax.vmap of both styles (rules of a class are out of scope yet)."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax
from tests.conformance.support import MulExp, SExp, check, gradients, recorded

pytestmark = pytest.mark.usefixtures("x64")

STYLES = pytest.mark.parametrize("exp", [SExp.apply, lambda x: MulExp.apply(x, 1.0)], ids=["setup_context", "ctx"])


@STYLES
@pytest.mark.parametrize(
    "run",
    [
        pytest.param(lambda f, x: jax.vmap(f)(x), id="H02"),
        pytest.param(lambda f, x: jax.vmap(lambda _: f(x[:, 0]))(x[0])[0][:, None], id="H08-nothing-batched"),
    ],
)
def test_vmap_without_a_rule(exp, run):
    """Decision 10: without a rule JAX batches by itself, where PyTorch refuses."""
    assert recorded("H02", "exc") == recorded("H08", "exc") == "RuntimeError"
    x = jnp.array([[1.0], [2.0]])
    np.testing.assert_allclose(run(exp, x), jnp.exp(x))


@STYLES
def test_H04_vmap_and_grad(exp):
    """Each example has its own gradient, whichever of vmap and grad comes first."""
    x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    check("H04", y=jax.vmap(exp)(x), g=jax.vmap(jax.grad(lambda x: exp(x).sum()))(x))
    check("H04", grad_of_vmap=gradients(jax.vmap(exp), x)[0], in_dims1=jax.vmap(exp, in_axes=1, out_axes=1)(x))


class Mul(fnjax.Function):
    @staticmethod
    def forward(x, w):
        return x * w

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        assert g.shape == (1,)
        return g * w, g * x


def test_H11_gradient_of_a_shared_input():
    """The gradient of an input that the batch shares is summed over it; backward sees one example."""
    x = jnp.array([[1.0], [2.0], [3.0]])
    check("H11", gw=gradients(lambda w: jax.vmap(lambda x: Mul.apply(x, w))(x), jnp.array([5.0]))[0])
    check("H11", gw=gradients(lambda w: jax.vmap(Mul.apply, (0, None))(x, w), jnp.array([5.0]))[0])


class Twice(fnjax.Function):
    """(2 x,), with a gradient that is larger than x."""

    @staticmethod
    def forward(ctx, x):
        return (x * 2,)

    @staticmethod
    def backward(ctx, g):
        return jnp.ones((4, 3)) * g


def test_H09_broadcast_gradient_under_vmap():
    """A gradient that broadcast is summed to its argument's shape in each example."""
    check("H09", g=jax.vmap(jax.grad(lambda x: Twice.apply(x)[0].sum()))(jnp.ones((2, 3))))


def test_H14_tuple_of_one_under_vmap():
    """A tuple of one stays one under vmap."""
    check("H14", type=type(jax.vmap(Twice.apply)(jnp.ones((2, 3)))).__name__)
