"""A linear backward (or jvp) is transposed, and a nonlinear one is refused."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax
from tests.wrappers import eager, scanned

pytestmark = pytest.mark.usefixtures("x64")


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
        with pytest.raises(fnjax.errors.MissingMethodError, match=r"Clip.backward is not linear in grad_output"):
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
        with pytest.raises(fnjax.errors.MissingMethodError, match="is not linear"):
            transform(jnp.array([0.7, -0.2, 0.1]))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("rule", LINEAR.values(), ids=LINEAR)
def test_a_linear_backward_is_transposed(rule):
    """Adding zeros keeps a backward linear: forward over reverse equals reverse over reverse, jitted or not."""
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
    """Exceptions of backward or jvp during JAX's transposition pass unchanged."""

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


@pytest.mark.parametrize(
    ("slope", "phrase"),
    [(Clipped, "Fn.backward is not linear"), (OnHost, "JAX cannot transpose pure_callback at .*test_linearity.py:")],
    ids=["clipped", "on host"],
)
def test_a_backward_whose_function_is_not_seen_to_be_linear(slope, phrase):
    """If the inner forward is not recognised as linear in grad_output, the Hessian is refused, never guessed."""
    Fn = type("Fn", (Cube,), {"slope": slope})
    loss = lambda x: jnp.sin(Fn.apply(x) * 0.7) * x
    assert jnp.isfinite(jax.jacrev(jax.grad(loss))(jnp.float64(1.3)))
    with pytest.raises(fnjax.errors.MissingMethodError, match=phrase):
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


@pytest.mark.sampled(3)
@pytest.mark.parametrize("indices", [[2, 0], [1, 1]], ids=["distinct", "repeated"])
@pytest.mark.parametrize("wrap", [eager, jax.jit])
def test_entries_that_backward_sets_are_transposed(indices, wrap):
    """`g.at[i].set(0)`, the JAX form of `g[i] = 0`, is linear: JAX has its derivative, though no transpose."""
    at = jnp.array(indices)

    class Stopped(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return jnp.sin(x)

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            return (g * jnp.cos(x)).at[at].set(0)

    @jax.custom_vjp
    def twin(x):
        return jnp.sin(x)

    twin.defvjp(lambda x: (jnp.sin(x), x), lambda x, g: ((g * jnp.cos(x)).at[at].set(0),))
    x = jnp.arange(1.0, 4.0)
    slope = jnp.where(jnp.isin(jnp.arange(3), at), 0, jnp.cos(x))
    np.testing.assert_allclose(wrap(lambda t: jax.jvp(Stopped.apply, (x,), (t,))[1])(x), slope * x, rtol=1e-6)
    expected = jax.jacrev(jax.grad(lambda x: (twin(x) ** 2).sum()))(x)
    np.testing.assert_allclose(wrap(jax.hessian(lambda x: (Stopped.apply(x) ** 2).sum()))(x), expected, rtol=1e-5)
