"""Section F, first part: derivatives of higher order, by what was saved."""

import jax
import jax.numpy as jnp
import pytest

import fnjax
from tests.conformance.support import (
    MulExp,
    answering,
    check,
    derivatives,
    gradients,
    is_zero,
    recorded,
    refuses,
    same,
    slope,
)

pytestmark = pytest.mark.usefixtures("x64")


def of(forward, backward):
    """A Function named F of two methods."""
    return type("F", (fnjax.Function,), {"forward": staticmethod(forward), "backward": staticmethod(backward)})


def saving_input(forward, backward):
    """A Function of x that saves x; `backward(x, g)`."""
    return of(
        lambda ctx, x: ctx.save_for_backward(x) or forward(x),
        lambda ctx, g: backward(ctx.saved_tensors[0], g),
    )


def saving_output(forward, backward):
    """A Function of x that saves its output; `backward(y, g)`."""

    def fwd(ctx, x):
        y = forward(x)
        ctx.save_for_backward(y)
        return y

    return of(fwd, lambda ctx, g: backward(ctx.saved_tensors[0], g))


cube = saving_input(lambda x: x**3, lambda x, g: 3 * x**2 * g)
once_cube = of(
    lambda ctx, x: ctx.save_for_backward(x) or x**3,
    fnjax.once_differentiable(lambda ctx, g: 3 * ctx.saved_tensors[0] ** 2 * g),
)
ONCE = "trying to differentiate twice a function that was marked with @once_differentiable"


@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    "second", [lambda f: slope(slope(f)), lambda f: jax.hessian(lambda x: f(x).sum())], ids=["reverse", "forward"]
)
def test_F01_once_differentiable(run, second):
    """Decisions 4 and 11: the first derivative is right, the second always raises (PyTorch: an unused input)."""
    x = jnp.array([2.0])
    square = lambda x: once_cube.apply(x) ** 2
    check("F01", g=gradients(once_cube.apply, x)[0], g2=gradients(square, x)[0])
    for loss in once_cube.apply, square:
        with pytest.raises(RuntimeError, match=f"{ONCE}.*F.backward"):
            run(second(loss))(x)


def test_F01_a_marked_backward_called_from_another():
    """Decision 4: a backward marked once_differentiable raises also where another backward calls it, as in PyTorch."""

    def backward(ctx, g):
        return once_cube.backward(ctx, g)

    fn = of(once_cube.forward, backward)
    x = jnp.array([2.0])
    assert gradients(fn.apply, x) == (12.0,)
    with pytest.raises(RuntimeError, match=ONCE):
        slope(slope(fn.apply))(x)


def test_F02_once_differentiable_without_saved_values():
    """JAX has no grad mode to turn off: once_differentiable raises at once, also where backward is linear."""
    check("F02", mode=False)
    fn = of(lambda ctx, x: x**3, fnjax.once_differentiable(lambda ctx, g: g))
    x = jnp.array([2.0])
    assert gradients(fn.apply, x) == (1.0,)
    with pytest.raises(RuntimeError, match=ONCE):
        slope(slope(lambda x: fn.apply(x) ** 2))(x)


def test_F03_saved_input():
    """Through a saved input all derivatives are right."""
    g, gg, ggg = derivatives(cube.apply, jnp.array([2.0]), 3)
    check("F03", g=g, gg=gg, ggg=ggg)


def test_F04_saved_output():
    """Through a saved output all derivatives are right."""
    g, gg, ggg = derivatives(lambda x: MulExp.apply(x, 2.0), jnp.array([0.5]), 3)
    check("F04", g=g, gg=gg, ggg=ggg)


def test_F05_saved_intermediate():
    """Decision 4: a saved intermediate has its true derivative (PyTorch: an error, or 288 in place of 480)."""
    assert recorded("F05", "square: gg (true 30*x^4=480)") == [288]

    def fwd(ctx, x):
        d = 3 * x**2
        ctx.save_for_backward(d)
        return x**3

    fn = of(fwd, lambda ctx, g: ctx.saved_tensors[0] * g)
    x = jnp.array([2.0])
    g, gg = derivatives(fn.apply, x)
    check("F05", g=g)
    assert gg == 6 * x
    assert derivatives(lambda x: fn.apply(x) ** 2, x)[1] == 480


def test_F06_derivative_in_the_incoming_gradient():
    """A pullback can be differentiated in its cotangent and in the input."""
    pull = lambda v, x: jax.vjp(lambda x: MulExp.apply(x, 2.0), x)[1](v)[0]
    gv, gx = gradients(pull, jnp.array([3.0]), jnp.array([2.0]))
    check("F06", gv=gv, gx=gx)


def test_F07_function_in_backward():
    """A backward may call other Functions, which call it in turn: every order is right."""

    class Sin(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return jnp.sin(x)

        @staticmethod
        def backward(ctx, g):
            return g * Cos.apply(*ctx.saved_tensors)

    class Cos(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return jnp.cos(x)

        @staticmethod
        def backward(ctx, g):
            return -g * Sin.apply(*ctx.saved_tensors)

    check("F07", d=derivatives(Sin.apply, jnp.array([0.7]), 4))


@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_F08_function_in_forward(run):
    """The backward of a Function called in forward is not run: that of the outer one stands for it."""
    calls = []
    inner = of(lambda ctx, x: x * 2, lambda ctx, g: calls.append("inner") or g * 2)
    outer = of(lambda ctx, x: inner.apply(x) * 3, lambda ctx, g: calls.append("outer") or g * 60)
    check("F08", gx=run(slope(outer.apply))(jnp.array([1.0])), calls=calls)


def test_F13_recursion():
    """A backward may apply its own class."""

    class Rec(fnjax.Function):
        @staticmethod
        def forward(ctx, x, n):
            ctx.save_for_backward(x)
            ctx.n = n
            return x * n

        @staticmethod
        def backward(ctx, g):
            return (g * ctx.n if ctx.n == 0 else Rec.apply(g, ctx.n - 1) + g), None

    check("F13", gx=gradients(lambda x: Rec.apply(x, 3), jnp.array([1.0]))[0])


def test_F14_once_differentiable_inside_backward():
    """Decision 4: once_differentiable inside a backward raises at the third order (PyTorch drops the term: 288)."""
    assert recorded("F14", "ggg", "ok") == [[288]]
    inner = of(
        lambda ctx, g, x: ctx.save_for_backward(g, x) or g * 3 * x**2,
        fnjax.once_differentiable(
            lambda ctx, gg: (gg * 3 * ctx.saved_tensors[1] ** 2, gg * ctx.saved_tensors[0] * 6 * ctx.saved_tensors[1])
        ),
    )
    outer = saving_input(lambda x: x**3, lambda x, g: inner.apply(g, x))
    loss = lambda x: outer.apply(x) ** 2
    g, gg = derivatives(loss, jnp.array([2.0]))
    check("F14", g=g, gg=gg)
    with pytest.raises(RuntimeError, match=ONCE):
        slope(slope(slope(loss)))(jnp.array([2.0]))


def test_F23_saved_output_with_a_false_rule():
    """The second derivative of a saved output goes through the custom backward again, derivative or not."""
    fn = saving_output(jnp.exp, lambda y, g: 100 * g * y)
    g, gg = derivatives(fn.apply, jnp.array(0.5))
    check("F23", g=g, gg=gg)


@pytest.mark.parametrize(
    "backward",
    [
        pytest.param(lambda x, g: 100 * g * x**2, id="F24"),
        pytest.param(lambda x, g: 100 * g * jnp.exp(x), id="F25"),
    ],
)
def test_saved_input_with_a_false_rule(request, backward):
    """The second derivative of a saved input is that of backward's own formula."""
    g, gg = derivatives(saving_input(jnp.exp, backward).apply, jnp.array(0.5))
    check(request.node.callspec.id, g=g, gg=gg)


def test_F26_saved_second_output():
    """The second derivative of a saved second output arrives in its own slot of the same backward."""
    seen = []

    def fwd(ctx, x):
        y, d = x**3, 3 * x**2
        ctx.save_for_backward(x, d)
        return y, d

    def bwd(ctx, gy, gd):
        seen.append((gy, gd))
        x, d = ctx.saved_tensors
        return gy * d + gd * 6 * x

    fn = of(fwd, bwd)
    f = lambda x: fn.apply(x)[0]
    _, pullback = jax.vjp(slope(f), jnp.array(2.0))
    seen.clear()
    same(pullback(jnp.array(1.0))[0], recorded("F26", "gg"))
    same([[gy.item(), gd.item()] for gy, gd in seen], recorded("F26", "seen")[1:])
    g, gg = derivatives(f, jnp.array(2.0))
    check("F26", g=g, gg=gg)


def test_F27_saved_output_that_is_marked():
    """Decision 4: a saved output that is marked non-differentiable has its true derivative as a saved value too."""
    assert recorded("F27", "gg (true 480)") == 288

    def fwd(ctx, x):
        y, d = x**3, 3 * x**2
        ctx.mark_non_differentiable(d)
        ctx.save_for_backward(d)
        return y, d

    fn = of(fwd, lambda ctx, gy, gd: gy * ctx.saved_tensors[0])
    g, gg = derivatives(lambda x: fn.apply(x)[0] ** 2, jnp.array(2.0))
    check("F27", g=g)
    assert gg == 480


def test_F28_saved_constants():
    """Saved inputs that are not being differentiated, integers too, are constants."""
    fn = of(
        lambda ctx, x, w, i: ctx.save_for_backward(x, w, i) or x**2 * w * i,
        lambda ctx, g: (g * 2 * ctx.saved_tensors[0] * ctx.saved_tensors[1] * ctx.saved_tensors[2], None, None),
    )
    g, gg = derivatives(lambda x: fn.apply(x, jnp.array(3.0), jnp.array(2)), jnp.array(2.0))
    check("F28", g=g, gg=gg)


def test_F29_none_at_every_order():
    """None for an input is zero at first order; the formula of another gradient still depends on that input."""
    fn = of(
        lambda ctx, x, y: ctx.save_for_backward(x, y) or x * y,
        lambda ctx, g: (g * ctx.saved_tensors[1], None),
    )
    x, y = jnp.array(2.0), jnp.array(3.0)
    gx, gy = gradients(fn.apply, x, y)
    check("F29", gx=gx, **{"d gx/dy": gradients(jax.grad(fn.apply), x, y)[1]})
    assert is_zero(gy)


def test_F31_saved_captured_array():
    """Decision 1: a captured array that is saved is a constant, and differentiating it is an error at every order."""
    x, w = jnp.array(3.0), jnp.array(4.0)

    def f(x, w):
        fn = of(
            lambda ctx, x: ctx.save_for_backward(x, w) or x * x * w,
            lambda ctx, g: g * 2 * ctx.saved_tensors[0] * ctx.saved_tensors[1],
        )
        return fn.apply(x)

    check("F31", g=gradients(lambda x: f(x, w), x)[0])
    for g in jax.grad(f, 1), jax.grad(jax.grad(f), 1):
        with pytest.raises(RuntimeError, match=r"\bF\b uses an array from outside"):
            g(x, w)


def test_F21_no_backward_where_none_is_needed():
    """A class without backward may be called where nobody differentiates it; elsewhere PyTorch's error comes."""
    fn = type(
        "NB",
        (fnjax.Function,),
        {"forward": staticmethod(lambda x: x * 2), "setup_context": staticmethod(lambda *_: None)},
    )
    check("F21", no_use=gradients(lambda x: x * 3 + fn.apply(jnp.ones(1)), jnp.array([1.0]))[0])
    phrase = "You must implement either the backward or vjp method for your custom autograd.Function to use it with"
    with refuses(recorded("F21", "use"), phrase, "NB"):
        gradients(fn.apply, jnp.array([1.0]))


def test_F30_materialise_but_not_for_marked_outputs():
    """With `ctx._materialize_non_diff_grads = False` a marked output gives None, and the rest zeros."""
    seen = {}

    def fwd(ctx, x):
        a, b, c = x + 0, x + 0, x + 0
        ctx.mark_non_differentiable(b)
        ctx._materialize_non_diff_grads = False
        return a, b, c

    fn = answering(lambda ctx, ga, gb, gc: seen.update(ga=ga, gb=gb, gc=gc) or ga, fwd)
    slope(lambda x: fn.apply(x)[0])(jnp.array([1.0]))
    check("F30", **seen)
