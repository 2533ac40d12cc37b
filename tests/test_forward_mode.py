"""Forward mode for every class, on the function itself and over reverse mode: from a jvp, or from backward."""

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax
from tests.wrappers import eager, once_in_fori_loop, once_in_scan, scanned, vmapped
from tests.zoo import CASES, FalseRule, arrays

pytestmark = pytest.mark.usefixtures("x64")

WRAPPERS = {"eager": eager, "vmap": vmapped, "scan": scanned, "remat": jax.checkpoint}
REAL = [case for case in CASES if case.name != "complex"]


def sum_of(loss, args):
    """A loss of several arguments as a function of one vector, and that vector."""
    flat, unravel = jax.flatten_util.ravel_pytree(args)
    return lambda v: loss(*unravel(v)), flat


@pytest.mark.sampled(3)
@pytest.mark.parametrize("wrap", [eager, scanned], ids=["eager", "scan"])
@pytest.mark.parametrize(
    "case",
    [c for c in REAL if c.name in ("saved_output", "numpy_forward", "saved_intermediate", "nested")],
    ids=lambda c: c.name,
)
def test_forward_over_forward_over_reverse(case, wrap):
    """Jacfwd of jacfwd of grad, and grad of a Hessian-vector product, agree with plain JAX."""
    f, x = sum_of(case.loss(wrap(case.apply)), arrays(case))
    twin, _ = sum_of(case.loss(case.twin), arrays(case))
    third = lambda f: jax.jacfwd(jax.jacfwd(jax.grad(f)))
    curvature = lambda f: jax.grad(lambda x: jax.jvp(jax.grad(f), (x,), (jnp.ones_like(x),))[1].sum())
    of_third, of_curvature = jax.jit(lambda x: (third(twin)(x), curvature(twin)(x)))(x)
    np.testing.assert_allclose(jax.jit(third(f))(x), of_third, rtol=1e-8, atol=1e-11)
    np.testing.assert_allclose(curvature(f)(x), of_curvature, rtol=1e-8, atol=1e-11)


@pytest.mark.parametrize(
    "wrap", [eager, jax.jit, once_in_scan, once_in_fori_loop], ids=["eager", "jit", "scan", "fori_loop"]
)
def test_a_rule_that_is_not_the_derivative(wrap):
    """The rule 100 y of exp shows in every mode, also inside loops: JAX never differentiates the body instead."""
    f, x = wrap(FalseRule.apply), jnp.float64(0.5)
    for second in (jax.hessian(f), jax.jacfwd(jax.grad(f)), jax.jacrev(jax.jacrev(f)), jax.grad(jax.grad(f))):
        np.testing.assert_allclose(second(x), 1e4 * np.exp(0.5), rtol=1e-12)


class Power(fnjax.Function):
    """x**k * y with both modes; the jvp saves for itself."""

    @staticmethod
    def forward(ctx, x, k, y):
        ctx.k = k
        ctx.save_for_backward(x, y)
        ctx.save_for_forward(x, y)
        return x**k * y

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return grad_output * ctx.k * x ** (ctx.k - 1) * y, None, grad_output * x**ctx.k

    @staticmethod
    def jvp(ctx, x_t, k_t, y_t):
        x, y = ctx.saved_tensors
        assert k_t is None
        return ctx.k * x ** (ctx.k - 1) * y * x_t + x**ctx.k * y_t


class OnlyJvp(fnjax.Function):
    """Without a backward: reverse mode is the transpose."""

    @staticmethod
    def forward(ctx, x, k, y):
        ctx.k = k
        ctx.save_for_forward(x, y)
        return x**k * y

    jvp = Power.jvp


class Derived(fnjax.Function):
    """Without a jvp: forward mode is the transpose."""

    forward = Power.forward
    backward = Power.backward


def first_orders(f, x, y):
    jacobians = [jac(f, i)(x, y) for jac in (jax.jacfwd, jax.jacrev) for i in (0, 1)]
    return [*jax.jvp(f, (x, y), (y, x)), *jacobians]


def second_orders(f, x, y):
    loss = lambda x, y: jnp.sum(jnp.sin(f(x, y)))
    both = jax.jacfwd, jax.jacrev
    return [outer(inner(loss))(x, y) for outer in both for inner in both]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("Fn", [Power, OnlyJvp, Derived], ids=lambda c: c.__name__)
@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_both_modes(Fn, wrap):
    """A jvp, a backward from a jvp, or a jvp from a backward: all modes and orders agree with plain JAX."""
    rng = np.random.default_rng(0)
    x, y = (jnp.asarray(rng.uniform(0.5, 1.5, 3)) for _ in range(2))
    f, twin = wrap(lambda x, y: Fn.apply(x, 3, y)), lambda x, y: x**3 * y
    first, second = jax.jit(lambda x, y: (first_orders(twin, x, y), second_orders(twin, x, y)))(x, y)
    for got, want in zip(first_orders(f, x, y), first, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-12)
    for got, want in zip(jax.jit(lambda x, y: second_orders(f, x, y))(x, y), second, strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-12)


def test_what_jvp_is_given():
    """Zeros (or None) for a tensor that does not move, None for static values and integers, and no backward's saves."""

    class Watch(fnjax.Function):
        seen = ()

        @staticmethod
        def forward(ctx, x, y, i, k, materialize):
            ctx.set_materialize_grads(materialize)
            ctx.save_for_backward(x)
            return x * 2, jnp.argsort(x)

        @staticmethod
        def jvp(ctx, *tangents):
            Watch.seen = (ctx.saved_tensors, *tangents)
            return tangents[0] * 2, None

    x = jnp.array([2.0, 1.0])
    for materialize in (True, False):
        call = lambda x, m=materialize: Watch.apply(x, jnp.ones(2), jnp.arange(2), 3.0, m)[0]
        jax.jvp(call, (x,), (x,))
        saved, x_t, y_t, *rest = Watch.seen
        assert saved == ()
        np.testing.assert_array_equal(x_t, x)
        assert y_t is None if not materialize else not y_t.any()
        assert rest == [None, None, None]


def returning(value):
    """A Function of one argument with outputs (float, int) and a jvp that returns `value(tangent)`."""

    class Fn(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2, jnp.argsort(x)

        @staticmethod
        def jvp(ctx, x_t):
            return value(x_t)

    x = jnp.ones(2)
    return lambda: jax.jvp(lambda x: Fn.apply(x)[0], (x,), (x,))


@pytest.mark.parametrize(
    ("value", "phrase"),
    [
        (lambda t: (t,), "jvp returned an invalid number of forward gradients (expected 2 but got 1)"),
        (lambda t: (t, None, None), "jvp returned an invalid number of forward gradients (expected 2 but got 3)"),
        (lambda t: (t, t), "jvp returned a gradient at position 1, but the corresponding forward output is not a diff"),
        (lambda t: (2.0, None), "expected Variable or None (got float) for grad output 0."),
        (lambda t: (jnp.ones(5), None), "Tensor is of size [2] while the given forward gradient is of size [5]."),
        (lambda t: (1j * t, None), "complex tangent for output 0, which is real"),
    ],
    ids=["few", "many", "constant", "number", "shape", "complex"],
)
def test_jvp_messages(value, phrase):
    """The tangents that jvp returns are checked, with PyTorch's messages."""
    with pytest.raises(fnjax.errors.GradientError) as info:
        returning(value)()
    assert phrase in str(info.value)
    assert "Fn" in str(info.value)
    assert "fix:" in str(info.value)


def test_jvp_none_and_other_dtypes():
    """None is a zero tangent, and another dtype is cast to the output's."""
    _, dot = returning(lambda t: (None, None))()
    np.testing.assert_array_equal(dot, np.zeros(2))
    _, dot = returning(lambda t: (t.astype(jnp.float32), None))()
    assert dot.dtype == jnp.float64


def test_functions_with_rules_of_their_own_inside():
    """jax.nn functions (custom_jvp) inside a forward that saves an intermediate."""

    class Squared(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            h = jax.nn.relu(x)
            ctx.save_for_backward(h)
            return h * h

        @staticmethod
        def backward(ctx, grad_output):
            (h,) = ctx.saved_tensors
            return grad_output * 2 * h

    assert jax.hessian(Squared.apply)(2.0) == 2.0
    assert jax.jit(jax.jacfwd(jax.jacfwd(jax.grad(lambda x: Squared.apply(x) ** 2))))(2.0) == 48.0


@pytest.mark.parametrize("f", [lambda f: f, jax.grad], ids=["function", "gradient"])
def test_once_differentiable_raises_in_forward_mode(f):
    """A backward marked once_differentiable has no transpose, on the function itself and in a Hessian."""

    class Once(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x**3

        @staticmethod
        @fnjax.once_differentiable
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            return 3 * x**2 * grad_output

    with pytest.raises(fnjax.errors.OnceDifferentiableError):
        jax.jvp(f(Once.apply), (2.0,), (1.0,))


class Sine(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return jnp.sin(x)

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return grad_output * jnp.cos(x)


@pytest.mark.parametrize("first", ["nothing", "call", "grad", "jvp"])
def test_one_jitted_function_inside_a_derivative_and_outside(first):
    """Forward mode does not depend on who called a jitted Function first: its program is one for all callers."""
    h, x = jax.jit(Sine.apply), jnp.float64(0.7)

    class Outer(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * h(x)

        @staticmethod
        def backward(ctx, grad_output):
            (x,) = ctx.saved_tensors
            return grad_output * (h(x) + x * jnp.cos(x))

    warm = {"nothing": lambda: None, "call": lambda: h(x), "grad": lambda: jax.grad(Outer.apply)(x)}
    warm["jvp"] = lambda: jax.jvp(h, (x,), (x,))
    warm[first]()
    twin = lambda x: x * jnp.sin(x)
    np.testing.assert_allclose(jax.hessian(Outer.apply)(x), jax.hessian(twin)(x), rtol=1e-12)
    np.testing.assert_allclose(jax.jvp(h, (x,), (x,)), jax.jvp(jnp.sin, (x,), (x,)), rtol=1e-12)
    np.testing.assert_allclose(jax.jacfwd(Outer.apply)(x), jax.grad(twin)(x), rtol=1e-12)
