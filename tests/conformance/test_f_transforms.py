"""Section F, second part: JAX's transformations inside backward and around a Function."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax
from tests.conformance.support import (
    MulExp,
    SExp,
    check,
    derivatives,
    gradients,
    recorded,
    slope,
)

pytestmark = pytest.mark.usefixtures("x64")


def x_sin_x(x):
    return jnp.sin(x) * x


class Recompute(fnjax.Function):
    """x sin(x), whose backward differentiates the formula anew; `seen_by` may cut the input from its history."""

    seen_by = staticmethod(lambda x: x)

    @classmethod
    def forward(cls, ctx, x):
        ctx.save_for_backward(x)
        return x_sin_x(x)

    @classmethod
    def backward(cls, ctx, g):
        (x,) = ctx.saved_tensors
        return jax.vjp(x_sin_x, cls.seen_by(x))[1](g)


class Detached(Recompute):
    """PyTorch's x.detach(), kept as stop_gradient."""

    seen_by = staticmethod(jax.lax.stop_gradient)


class Kept(fnjax.Function):
    """The pullback made in forward and kept on ctx."""

    @staticmethod
    def forward(ctx, x):
        y, ctx.pullback = jax.vjp(x_sin_x, x)
        return y

    @staticmethod
    def backward(ctx, g):
        return ctx.pullback(g)


@pytest.mark.parametrize("function", [Recompute, Detached], ids=["plain", "detached"])
def test_F09_vjp_in_backward(function):
    """The counterpart of enable_grad and autograd.grad in backward is jax.vjp."""
    check("F09", gx=gradients(function.apply, jnp.array([0.7, 1.1]))[0])


def test_F10_second_derivative_of_a_detached_recomputation():
    """The second derivative, an error in PyTorch, is zero if stop_gradient stands for detach, else the true one."""
    assert recorded("F10", "plain", "exc") == recorded("F10", "square", "exc") == "RuntimeError"
    x = jnp.array([0.7])
    square = lambda f: lambda x: f(x) ** 2
    assert derivatives(Detached.apply, x)[1] == 0
    np.testing.assert_allclose(derivatives(square(Detached.apply), x)[1], 2 * slope(x_sin_x)(x) ** 2)
    np.testing.assert_allclose(derivatives(square(Recompute.apply), x), derivatives(square(x_sin_x), x))


def test_F11_second_derivative_of_a_recomputation():
    """A jax.vjp in backward on the saved input has the right second derivative."""
    g, gg = derivatives(Recompute.apply, jnp.array([0.7]))
    check("F11", g=g, gg=gg)
    check("F11", gg_true=recorded("F11", "gg").item())


def test_F12_graph_kept_from_forward():
    """The counterpart of a graph kept on ctx is a pullback; its second derivative is right too."""
    x = jnp.array([0.7])
    g, gg = derivatives(Kept.apply, x)
    check("F12", gx=g)
    np.testing.assert_allclose(gg, derivatives(x_sin_x, x)[1])


def test_F15_needs_input_grad_in_a_second_derivative():
    """Decision 6: in d²/dy dx of Mul the first pass asks for x alone, and the second for y alone."""
    assert recorded("F15", "seen") == [[True, True], [False, True]]
    seen = []

    class Mul(fnjax.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a * b

        @staticmethod
        def backward(ctx, g):
            seen.append(tuple(ctx.needs_input_grad))
            a, b = ctx.saved_tensors
            needs = ctx.needs_input_grad
            return (Mul.apply(g, b) if needs[0] else None), (Mul.apply(g, a) if needs[1] else None)

    x, y = jnp.array([2.0]), jnp.array([3.0])
    check("F15", gxy=slope(lambda y: slope(lambda x: Mul.apply(x, y))(x))(y))
    assert seen[0] == (True, False)
    assert seen[-1] == (False, True)
    assert set(seen) == {(True, False), (False, True)}


def test_F17_vmap_over_backward():
    """A pullback may be vmapped, as `is_grads_batched` does."""
    x = jnp.array([1.0, 2.0])
    _, pullback = jax.vjp(lambda x: MulExp.apply(x, 2.0), x)
    check("F17", J=jax.vmap(pullback)(jnp.eye(2))[0])


def test_F18_jacobian_and_hessian():
    """Jacobian, and Hessian in reverse and in forward over reverse mode, of the style with ctx."""
    f = lambda x: MulExp.apply(x, 2.0)
    x = jnp.array([0.1, 0.2])
    for run in lambda f: f, jax.jit:
        check("F18", J=run(jax.jacrev(f))(x), H=run(jax.jacrev(jax.grad(lambda x: f(x).sum())))(x))
        check("F18", H=run(jax.hessian(lambda x: f(x).sum()))(x))


@pytest.mark.parametrize("f", [lambda x: MulExp.apply(x, 1.0), SExp.apply], ids=["ctx", "setup_context"])
def test_F19_both_styles_under_every_transformation(f):
    """PyTorch refuses the style with ctx under torch.func; JAX's transformations take both."""
    assert recorded("F19", "exc") == "RuntimeError"
    x = jnp.array([1.0, 2.0])
    for run in (
        jax.jit(jax.vmap(jax.grad(f))),
        jax.grad(lambda x: jax.vmap(f)(x).sum()),
        jax.vmap(jax.grad(jax.grad(f))),
        jax.grad(lambda x: jax.lax.map(jax.checkpoint(f), x).sum()),
    ):
        np.testing.assert_allclose(run(x), jnp.exp(x))


def test_F20_transformations_of_the_style_with_setup_context():
    """Gradient, pullback, Jacobian and Hessian (PyTorch: torch.func) are right."""
    f = lambda x: SExp.apply(x).sum()
    x = jnp.array([0.1, 0.2])
    check("F20", grad=jax.grad(f)(x), vjp=jax.vjp(SExp.apply, x)[1](jnp.ones(2))[0], jacrev=jax.jacrev(SExp.apply)(x))
    check("F20", hess=jax.hessian(f)(x), gg=slope(slope(SExp.apply))(x))


def test_F22_needs_input_grad_under_grad():
    """Decision 6: it tells what is being differentiated, as under torch.func.grad."""
    seen = []

    class Mul(fnjax.Function):
        @staticmethod
        def forward(x, y):
            return x * y

        @staticmethod
        def setup_context(ctx, inputs, output):
            seen.append(list(ctx.needs_input_grad))
            ctx.save_for_backward(*inputs)

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * y, g * x

    jax.grad(lambda x, y: Mul.apply(x, y).sum())(jnp.array([2.0]), jnp.array([3.0]))
    assert seen[-1] == recorded("F22", "seen")[-1]
