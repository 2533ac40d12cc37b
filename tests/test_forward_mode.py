"""Forward mode for every class, on the function itself and over reverse mode: from a jvp, or from backward."""

import jax
import jax.flatten_util
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax
from tests.wrappers import eager, once_in_fori_loop, once_in_scan, scanned, vmapped
from tests.zoo import CASES, FalseRule, SavedInput, arrays

pytestmark = pytest.mark.usefixtures("x64")

WRAPPERS = {"eager": eager, "vmap": vmapped, "scan": scanned, "remat": jax.checkpoint}
REAL = [case for case in CASES if case.name != "complex"]


def sum_of(loss, args):
    """A loss of several arguments as a function of one vector, and that vector."""
    flat, unravel = jax.flatten_util.ravel_pytree(args)
    return lambda v: loss(*unravel(v)), flat


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
    """What jvp returns is checked, in PyTorch's words."""
    with pytest.raises(fnjax.GradientError) as info:
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


def test_clipping_has_no_transpose():
    """A backward that is not linear in grad_output is refused, with the reason, where its transpose is needed."""

    class Clip(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 1

        @staticmethod
        def backward(ctx, grad_output):
            return jnp.clip(grad_output, -1, 1)

    assert jax.grad(lambda x: 5 * Clip.apply(x))(1.0) == 1.0
    square = lambda x: Clip.apply(x) ** 2
    for transform in (jax.jacfwd(Clip.apply), jax.jit(jax.jacfwd(Clip.apply)), jax.hessian(square)):
        with pytest.raises(fnjax.MissingMethodError, match=r"Clip.backward \(or its jvp\) is not linear"):
            transform(1.0)


NOT_LINEAR = {
    "checkpoint": lambda g, x: jax.checkpoint(lambda g: g + 1.0)(g),
    "sum": lambda g, x: g + 1,
    "difference": lambda g, x: jnp.sign(x) - g,
    "where": lambda g, x: jnp.where(x > 0, g, x),
    "concatenate": lambda g, x: jnp.concatenate([g[:1], x[1:]]),
    "update": lambda g, x: x.at[1:].set(g[1:]),
    "in a jitted function": jax.jit(lambda g, x: 2 * (g + x)),
    "map": lambda g, x: jax.lax.map(lambda a: a + 1.0, g),
    "carry of scan": lambda g, x: jax.lax.scan(lambda c, xi: (c + xi, None), g, x)[0],
    "start of scan": lambda g, x: jax.lax.scan(lambda c, gi: (gi, c), 1.0, g)[1],
    "late in scan": lambda g, x: jax.lax.scan(lambda c, gi: ((1.0, c[0], c[1]), gi + c[2]), (0.0, 0.0, 0.0), g)[1],
    "fori_loop": lambda g, x: jax.lax.fori_loop(0, 2, lambda _, c: 2 * c + 1, g),
    "loop in a loop": lambda g, x: jax.lax.map(lambda a: jax.lax.fori_loop(0, 2, lambda _, c: c + 1, a), g),
    "cond": lambda g, x: jax.lax.cond(x[0] > 0, lambda g: g, lambda g: g + x, g),
    "constant branch": lambda g, x: jax.lax.cond(x[0] > 0, lambda g: g, lambda g: x, g),
    "chosen by the gradient": lambda g, x: jax.lax.cond(g[0] > 0, lambda g: g, lambda g: 2 * g, g),
    "step": lambda g, x: (g > 0) * x,
    "constant": lambda g, x: x,
    "stack": lambda g, x: jnp.stack([g[0], g[1], x[2]]),
    "complex": lambda g, x: jnp.abs(x) * jax.lax.complex(g, x).real,
}
LINEAR = {
    "checkpoint": jax.checkpoint(lambda g, x: g * x + 0.0),
    "where": lambda g, x: jnp.where(x > 0, g, 0),
    "zeros": lambda g, x: jnp.zeros_like(g).at[1:].set(g[1:]) + jnp.zeros(3) * x,
    "concatenate": lambda g, x: jnp.concatenate([g[:1], jnp.zeros(2)]),
    "pad": lambda g, x: jnp.pad(g[:1], (0, 2)),
    "captured zeros": lambda g, x: g + ZEROS,
    "relu": lambda g, x: jax.vjp(jax.nn.relu, x)[1](g)[0],
    "cumsum": lambda g, x: jnp.cumsum(g),
    "scan": lambda g, x: jax.lax.scan(lambda c, gi: (c + gi, c + gi), 0.0, g)[1],
    "fori_loop": lambda g, x: jax.lax.fori_loop(0, 2, lambda i, c: c * x[i] + jnp.zeros(3), g),
    "loop in a loop": lambda g, x: jax.lax.map(lambda a: jax.lax.fori_loop(0, 2, lambda _, c: c + a, 0.0), g),
    "loop of unknown length": lambda g, x: g * x * jax.lax.while_loop(lambda c: c < 2, lambda c: c + 1, 0.0),
    "cond": lambda g, x: jax.lax.cond(x[0] > 0, lambda g: 2 * g, jnp.zeros_like, g),
    "constant zero": lambda g, x: jnp.zeros(3),
    "zeros in jit": jax.jit(lambda g, x: g * x + ZEROS),
    "zeros of JAX": lambda g, x: g * x + jnp.asarray(ZEROS),
    "constants of JAX": lambda g, x: g * x * ONES,
    "solve": lambda g, x: jnp.linalg.solve(jnp.diag(x), g),
    "convolution": lambda g, x: jnp.convolve(g, x, mode="same"),
    "derivative of a scan": lambda g, x: jax.vjp(lambda x: jax.lax.scan(lambda c, a: (c * a, c), 1.0, x)[1], x)[1](g)[
        0
    ],
    "derivative of a derivative": lambda g, x: jax.jvp(jax.nn.softplus, (x,), (g,))[1],
}
ZEROS = np.zeros(3)
ONES = jnp.ones(3, "float32")


def with_backward(rule):
    class WithBackward(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * 1

        @staticmethod
        def backward(ctx, grad_output):
            return rule(grad_output, *ctx.saved_tensors)

    return lambda x: jnp.sin(WithBackward.apply(x)).sum()


@pytest.mark.parametrize("rule", NOT_LINEAR.values(), ids=NOT_LINEAR)
def test_an_affine_backward_has_no_transpose(rule):
    """A backward that adds a constant to grad_output, which jax.linear_transpose would drop, is refused."""
    f = with_backward(rule)
    for transform in (jax.hessian(f), jax.jit(jax.jacfwd(f))):
        with pytest.raises(fnjax.MissingMethodError, match="is not linear"):
            transform(jnp.array([0.7, -0.2, 0.1]))


@pytest.mark.parametrize("rule", LINEAR.values(), ids=LINEAR)
def test_a_linear_backward_is_transposed(rule):
    """What only adds zeros is linear: forward over reverse is reverse over reverse, jitted inside and outside."""
    if rule is LINEAR["checkpoint"] and jax.config.jax_remat3:
        pytest.skip("with JAX_REMAT3=1 jax.linear_transpose has no rule for jax.checkpoint")
    f, x = with_backward(rule), jnp.array([0.7, -0.2, 0.1])
    expected = jax.jit(jax.jacrev(jax.grad(f)))(x)
    for hessian in (jax.hessian(f), jax.jit(jax.hessian(f)), jax.hessian(jax.jit(f))):
        np.testing.assert_allclose(hessian(x), expected, rtol=1e-12)


def test_the_transpose_of_a_jvp_with_a_global_array():
    """Reverse mode of a class with a jvp may read an array of JAX from outside, inside of jit too."""

    class Scaled(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            return x * ONES

        @staticmethod
        def jvp(ctx, x_t):
            return x_t * ONES

    loss = lambda x: (Scaled.apply(x) ** 2).sum()
    for grad in (jax.grad(loss), jax.jit(jax.grad(loss)), jax.grad(jax.jit(loss))):
        np.testing.assert_array_equal(grad(jnp.array([2.0, 3.0, 4.0])), [4.0, 6.0, 8.0])


class Mine(Exception):
    """One that only the user's methods raise."""


def fail(*_):
    raise Mine("of the user's own")


@pytest.mark.parametrize("wrap", [eager, jax.jit, jax.vmap], ids=["eager", "jit", "vmap"])
@pytest.mark.parametrize("nested", [False, True], ids=["direct", "nested"])
def test_exceptions_of_the_users_pass_through_a_transpose(wrap, nested):
    """What backward or jvp raise while JAX transposes them arrives as it was raised."""

    class Both(fnjax.Function):
        forward = staticmethod(lambda ctx, x: x * 2)
        backward = staticmethod(fail)
        jvp = staticmethod(lambda ctx, x_t: x_t * 2)

    def backward(ctx, grad_output):
        return jax.jvp(Both.apply, (grad_output,), (grad_output,))[1] if nested else fail()

    Reverse = type("Reverse", (fnjax.Function,), {"forward": Both.forward, "backward": staticmethod(backward)})
    Forward = type("Forward", (fnjax.Function,), {"forward": Both.forward, "jvp": staticmethod(fail)})
    x = jnp.ones(2)
    with pytest.raises(Mine, match="of the user's own"):
        jax.jvp(wrap(Reverse.apply), (x,), (x,))
    with pytest.raises(Mine, match="of the user's own"):
        jax.grad(lambda x: wrap(Forward.apply)(x).sum())(x)


class CubeSlope(fnjax.Function):
    """The backward of Cube as a Function of its own: PyTorch's idiom for double backward."""

    @staticmethod
    def forward(ctx, g, x):
        ctx.save_for_backward(g, x)
        return 3 * g * x**2

    @staticmethod
    def backward(ctx, grad_output):
        g, x = ctx.saved_tensors
        return grad_output * 3 * x**2, grad_output * 6 * g * x


class Cube(fnjax.Function):
    slope = CubeSlope

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @classmethod
    def backward(cls, ctx, g):
        (x,) = ctx.saved_tensors
        return cls.slope.apply(g, x)


@pytest.mark.parametrize("wrap", [eager, jax.jit, scanned], ids=["eager", "jit", "scan"])
def test_a_backward_that_calls_a_function_on_its_gradient(wrap):
    """A Hessian transposes that Function in grad_output, in which its forward is linear."""
    x = jnp.linspace(0.5, 1.5, 3)
    loss = lambda f: lambda x: jnp.sum(jnp.sin(wrap(f)(x)))
    np.testing.assert_allclose(
        jax.hessian(loss(Cube.apply))(x), jax.hessian(loss(lambda x: x**3))(x), rtol=1e-10, atol=1e-12
    )


class Clipped(CubeSlope):
    """Not linear in g, whatever its backward says."""

    @staticmethod
    def forward(ctx, g, x):
        ctx.save_for_backward(g, x)
        return 3 * jnp.clip(g, -1, 1) * x**2


class OnHost(CubeSlope):
    """Linear in g, but by NumPy: nobody can tell."""

    @staticmethod
    def forward(ctx, g, x):
        ctx.save_for_backward(g, x)
        result = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return jax.pure_callback(lambda g, x: 3 * g * x**2, result, g, x, vmap_method="expand_dims")


@pytest.mark.parametrize("slope", [Clipped, OnHost], ids=lambda c: c.__name__)
def test_a_backward_whose_function_is_not_seen_to_be_linear(slope):
    """Where its forward is not linear in grad_output, or is not seen to be, the Hessian is refused, never guessed."""
    Fn = type("Fn", (Cube,), {"slope": slope})
    loss = lambda x: jnp.sin(Fn.apply(x) * 0.7) * x
    assert jnp.isfinite(jax.jacrev(jax.grad(loss))(jnp.float64(1.3)))
    with pytest.raises(fnjax.MissingMethodError, match="not linear"):
        jax.hessian(loss)(jnp.float64(1.3))


def test_the_transpose_is_that_of_what_backward_computes():
    """A Function in backward whose own rule reverses the gradient leaves derived forward mode equal to reverse mode."""

    class Reversed(fnjax.Function):
        @staticmethod
        def forward(ctx, g):
            return g * 1

        @staticmethod
        def backward(ctx, grad_output):
            return -grad_output

    class Doubled(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad_output):
            return Reversed.apply(grad_output) * 2

    f = lambda x: jnp.sin(Doubled.apply(x))
    assert jax.jvp(f, (0.3,), (1.0,))[1] == jax.grad(f)(0.3)


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

    with pytest.raises(fnjax.OnceDifferentiableError):
        jax.jvp(f(Once.apply), (2.0,), (1.0,))


def test_derive_jvp_changes_nothing():
    """The option of earlier versions is accepted, whatever it says."""
    for says in (True, False):
        Fn = type("Fn", (SavedInput,), {"derive_jvp": says})
        assert jax.jvp(Fn.apply, (0.7,), (1.0,))[1] == jax.grad(Fn.apply)(0.7)


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


def test_captured_tracers_in_both_modes():
    """Arrays of an enclosing jit may be used by forward, backward and jvp of a class that is differentiated outside."""

    def make(k):
        class Scale(fnjax.Function):
            @staticmethod
            def forward(ctx, x):
                return x * k

            @staticmethod
            def backward(ctx, grad_output):
                return grad_output * k

            @staticmethod
            def jvp(ctx, x_t):
                return x_t * k

        return Scale.apply

    f = jax.jit(lambda k, x: make(k)(x) ** 2)
    g = lambda x: f(3.0, x)
    assert jax.jvp(g, (2.0,), (1.0,)) == (36.0, 36.0)
    assert jax.grad(g)(2.0) == 36.0
    assert jax.hessian(g)(2.0) == 18.0
    assert jax.jacfwd(jax.jacfwd(g))(2.0) == 18.0
