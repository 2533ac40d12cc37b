"""Functions that JAX transposes: numbers beside twins, and errors that name what cannot be transposed, and where."""

import os
import pathlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.scipy.sparse.linalg import bicgstab, cg

import fnjax
from tests.wrappers import eager, once_in_scan

pytestmark = pytest.mark.usefixtures("x64")

A = np.array([[1.0, 2.0], [3.0, 4.0]])
B = np.array([1.0, -2.0])


class Sum(fnjax.Function):
    @staticmethod
    def forward(ctx, a, b):
        return a + 2 * b

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, 2 * grad_output


class AppliesSum(fnjax.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_forward(x)
        return x * x + y

    @staticmethod
    def jvp(ctx, x_t, y_t):
        (x,) = ctx.saved_tensors
        return Sum.apply(2 * x * x_t, 0.5 * y_t)


WRAPPERS = {"eager": eager, "jit": jax.jit, "scan": once_in_scan, "remat": jax.checkpoint}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_a_tangent_that_is_zero_and_traced(wrap):
    """A jvp rule applies a Function to a tangent and a multiple of the zero tangent of another (jax#19087)."""
    f = wrap(lambda x: AppliesSum.apply(x, jnp.asarray(1.0)))
    for differentiate in (lambda f: f, jax.jit):
        assert differentiate(jax.grad(f))(3.0) == 6
    assert jax.hessian(f)(3.0) == jax.jacrev(jax.grad(f))(3.0) == 2


class MatVec(fnjax.Function):
    @staticmethod
    def forward(ctx, matrix, v):
        ctx.save_for_backward(matrix, v)
        return matrix @ v

    @staticmethod
    def backward(ctx, grad_output):
        matrix, v = ctx.saved_tensors
        return jnp.outer(grad_output, v), matrix.T @ grad_output


class SineMatVec(fnjax.Function):
    """A saved intermediate that does not depend on v."""

    @staticmethod
    def forward(ctx, matrix, v):
        sine = jnp.sin(matrix)
        ctx.save_for_backward(matrix, v, sine)
        return sine @ v

    @staticmethod
    def backward(ctx, grad_output):
        matrix, v, sine = ctx.saved_tensors
        return jnp.outer(grad_output, v) * jnp.cos(matrix), sine.T @ grad_output


class Marked(MatVec):
    """A derivative that is ten times that of the body, so that one can tell which is used."""

    @staticmethod
    def backward(ctx, grad_output):
        matrix, v = ctx.saved_tensors
        return 10 * jnp.outer(grad_output, v), matrix.T @ grad_output


def of_transpose(f):
    return lambda matrix: (jax.linear_transpose(lambda v: f(matrix, v), B)(B)[0] ** 3).sum()


TWINS = {
    "matvec": (MatVec.apply, lambda a, v: a @ v, 1),
    "intermediate": (SineMatVec.apply, lambda a, v: jnp.sin(a) @ v, 1),
    "marked": (Marked.apply, lambda a, v: a @ v, 10),
}


@pytest.mark.parametrize("case", TWINS.values(), ids=TWINS)
def test_the_derivative_of_a_transpose(case):
    """A transposed call is differentiated in its other arguments by the rule, to second order."""
    f, twin, factor = case
    g, h = of_transpose(f), of_transpose(twin)
    expected = jax.jit(jax.grad(h))(A)
    np.testing.assert_allclose(jax.grad(g)(A), factor * expected, rtol=1e-10)
    np.testing.assert_allclose(jax.jit(jax.vmap(jax.grad(g)))(jnp.stack([A, A]))[1], factor * expected, rtol=1e-10)
    if factor == 1:
        expected = jax.jit(jax.hessian(h))(A)
        np.testing.assert_allclose(jax.jit(jax.hessian(g))(A), expected, rtol=1e-10)
        np.testing.assert_allclose(jax.jit(jax.jacrev(jax.grad(g)))(A), expected, rtol=1e-10)


class Nested(fnjax.Function):
    """Seven times x: forward calls another Function; backward is this Function itself."""

    @staticmethod
    def forward(ctx, x):
        return Sum.apply(x, 3 * x)

    @staticmethod
    def backward(ctx, grad_output):
        return Nested.apply(grad_output)


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_a_call_inside_a_call(wrap):
    """A transposed call has another in its body."""
    if wrap is jax.checkpoint and os.environ.get("JAX_REMAT3") == "1":
        pytest.skip("jax.checkpoint has no transpose with JAX_REMAT3=1")
    f = wrap(Nested.apply)
    assert jax.linear_transpose(f, 1.0)(1.0) == (7.0,)
    assert jax.jvp(f, (1.0,), (1.0,)) == (7, 7)
    assert jax.hessian(lambda x: f(x) ** 2)(1.0) == 98


def test_the_hessian_of_a_solver():
    """The matrix of an iterative solver is an argument of its matvec, which is bilinear."""
    loss = lambda f: lambda a: (bicgstab(lambda v: f(a, v), B, tol=1e-13)[0] ** 2).sum()
    exact = jax.jit(jax.hessian(lambda a: (jnp.linalg.solve(a, B) ** 2).sum()))(A)
    np.testing.assert_allclose(jax.jit(jax.hessian(loss(MatVec.apply)))(A), exact, rtol=1e-6)


class Product(fnjax.Function):
    """The rule of a bilinear function is the function itself (jax#5202); with 0 for inf * 0."""

    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return jnp.where(y == 0, jnp.zeros_like(x), x * y)

    @staticmethod
    def backward(ctx, grad_output):
        x, y = ctx.saved_tensors
        return Product.apply(grad_output, y), Product.apply(x, grad_output)


class ProductJvp(fnjax.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_forward(x, y)
        return x * y

    @staticmethod
    def jvp(ctx, x_t, y_t):
        x, y = ctx.saved_tensors
        return ProductJvp.apply(x_t, y) + ProductJvp.apply(x, y_t)


@pytest.mark.slow
@pytest.mark.parametrize("wrap", [eager, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("Fn", [Product, ProductJvp], ids=["backward", "jvp"])
def test_a_bilinear_function_whose_rule_is_itself(Fn, wrap):
    """Both modes, and their compositions, are those of the product."""
    x, y, both = 3.0, 5.0, (0, 1)
    f = wrap(Fn.apply)
    assert jax.jvp(f, (x, y), (1.0, 1.0)) == (15, 8)
    assert jax.grad(f, both)(x, y) == (5, 3)
    for outer in (jax.jacfwd, jax.jacrev):
        for inner in (jax.jacfwd, jax.jacrev):
            assert outer(inner(f, both), both)(x, y) == ((0, 1), (1, 0))


def test_the_value_of_such_a_function_at_infinity():
    """The gradient is that of the rule: 0 where JAX's product has nan."""
    assert jax.grad(Product.apply, (0, 1))(jnp.inf, 0.0) == (0, jnp.inf)


class Threshold(fnjax.Function):
    """Zero at zero, with the derivative of the identity: not linear, whatever its rule says."""

    @staticmethod
    def forward(ctx, x):
        return jnp.where(jnp.abs(x) > 1, x, 0)

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output


def loop(x, by):
    return jax.lax.while_loop(lambda s: s[1] < 2, lambda s: (s[0] * by, s[1] + 1), (x, 0))[0]  # HERE: while


def callback(g, x):
    shape = jax.ShapeDtypeStruct(g.shape, g.dtype)
    return jax.pure_callback(lambda g, x: g * x, shape, g, x, vmap_method="sequential")  # HERE: pure_callback


def stopped(g, x):
    return jax.lax.stop_gradient(g) * x  # HERE: stop_gradient


def with_backward(rule):
    class Fn(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return jnp.sin(x)

        @staticmethod
        def backward(ctx, grad_output):
            return rule(grad_output, *ctx.saved_tensors)

    return Fn.apply


def with_jvp(rule):
    class Fn(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_forward(x)
            return jnp.sin(x)

        @staticmethod
        def jvp(ctx, tangent):
            return rule(tangent, *ctx.saved_tensors)

    return Fn.apply


def forward_only(forward):
    return type("Fn", (fnjax.Function,), {"forward": staticmethod(lambda ctx, x: forward(x))}).apply


REVERSE, ADD_JVP = "take the derivative in reverse mode", "add a static method jvp(ctx, *tangents) to Fn"
FORWARD, ADD_BACKWARD = "take the derivative in forward mode", "add a static method backward(ctx, *grad_outputs) to Fn"
NO_TRANSPOSE = {
    "loop in backward": (lambda: jax.jacfwd(with_backward(loop))(0.5), "while", "Fn.backward", "jax.lax.scan", ADD_JVP),
    "loop in jvp": (lambda: jax.grad(with_jvp(loop))(0.5), "while", "Fn.jvp", FORWARD, ADD_BACKWARD),
    "loop in scan": (
        lambda: jax.jacfwd(with_backward(lambda g, x: once_in_scan(lambda g: loop(g, x))(g)))(0.5),
        *("while", "Fn.backward", "jax.lax.scan", ADD_JVP),
    ),
    "callback in backward": (
        lambda: jax.jacfwd(with_backward(callback))(0.5),
        *("pure_callback", "Fn.backward", REVERSE, ADD_JVP),
    ),
    "callback in jvp": (lambda: jax.grad(with_jvp(callback))(0.5), "pure_callback", "Fn.jvp", FORWARD, ADD_BACKWARD),
    "stop_gradient": (
        lambda: jax.jacfwd(with_backward(stopped))(0.5),
        *("stop_gradient", "Fn.backward", "leave out jax.lax.stop_gradient", ADD_JVP),
    ),
    "callback in forward": (
        lambda: jax.linear_transpose(forward_only(lambda x: callback(x, jnp.ones_like(x))), 0.5)(0.5),
        *("pure_callback", "Fn.forward", "linear = True", "backward its transpose"),
    ),
    "matvec of a solver": (
        lambda: jax.grad(lambda b: bicgstab(forward_only(lambda x: callback(x, jnp.ones_like(x))), b)[0].sum())(B),
        *("pure_callback", "Fn.forward", "linear = True", "backward its transpose"),
    ),
}


def place_of(name):
    lines = pathlib.Path(__file__).read_text().splitlines()
    (number,) = (i for i, line in enumerate(lines, 1) if line.endswith(f"# HERE: {name}"))
    return f"{name} at {__file__}:{number}"


@pytest.mark.parametrize("wrap", [eager, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("case", NO_TRANSPOSE.values(), ids=NO_TRANSPOSE)
def test_an_operation_without_transpose(case, wrap):
    """The error names the operation, its place, the method and the remedy in this mode, and does not say nonlinear."""
    run, operation, method, *remedies = case
    with pytest.raises(fnjax.errors.MissingMethodError) as caught:
        wrap(run)()
    text = str(caught.value)
    for ingredient in ("JAX cannot transpose", place_of(operation), f"in {method}", *remedies, "explain no-transpose"):
        assert ingredient in text
    assert "not linear" not in text
    assert __file__ in caught.value.__notes__[0]


def test_one_in_a_closure():
    """The same where the Function closes over a traced array."""

    def f(w):
        class Fn(fnjax.Function):
            forward = staticmethod(lambda ctx, x: x * w)
            backward = staticmethod(lambda ctx, g: loop(g, w))

        return jax.jacfwd(Fn.apply)(1.0)

    with pytest.raises(fnjax.errors.MissingMethodError) as caught:
        jax.jit(f)(2.0)
    assert f"JAX cannot transpose {place_of('while')}, in Fn.backward" in str(caught.value)


NOT_LINEAR = {
    "abs": lambda g, x: jnp.abs(g) * x,
    "square": lambda g, x: g * g,
    "division": lambda g, x: x / g,
    "sort": lambda g, x: jnp.sort(jnp.stack([g, 2 * g]))[0],
    "in a loop": lambda g, x: once_in_scan(jnp.tanh)(g),
    "of a Function": lambda g, x: Threshold.apply(g),
    "set, then abs": lambda g, x: jnp.abs(jnp.zeros(3).at[jnp.array([0, 0])].set(g)).sum(),
}


@pytest.mark.parametrize("wrap", [eager, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("rule", NOT_LINEAR.values(), ids=NOT_LINEAR)
def test_what_is_not_linear(rule, wrap):
    """Of a backward, or jvp, that is not linear, this is said, and nothing is guessed."""
    with pytest.raises(fnjax.errors.MissingMethodError) as caught:
        wrap(jax.jacfwd(with_backward(rule)))(0.5)
    for ingredient in ("Fn.backward is not linear in grad_output", REVERSE, ADD_JVP, "fnjax explain not-linear"):
        assert ingredient in str(caught.value)
    with pytest.raises(fnjax.errors.MissingMethodError) as caught:
        wrap(jax.grad(with_jvp(rule)))(0.5)
    for ingredient in ("Fn.jvp is not linear in its tangents", FORWARD, ADD_BACKWARD, "fnjax explain not-linear"):
        assert ingredient in str(caught.value)


def test_an_affine_forward():
    """jax.linear_transpose of a forward that adds a constant, which JAX would drop, is an error."""
    with pytest.raises(fnjax.errors.MissingMethodError, match=r"Fn.forward is not linear in the arguments"):
        jax.linear_transpose(forward_only(lambda x: x + 1), 0.5)(0.5)


def test_implicit_differentiation_in_backward():
    """A backward that solves by cg has no transpose in JAX, but a derivative: forward mode is reverse mode."""
    matrix, x = np.array([[2.0, 1.0], [1.0, 3.0]]), jnp.array([0.3, 0.4])
    f = with_backward(lambda g, x: cg(lambda v: matrix @ v, g)[0] * jnp.cos(x))
    np.testing.assert_allclose(jax.jit(jax.jacfwd(f))(x), jax.jit(jax.jacrev(f))(x), rtol=1e-6)
