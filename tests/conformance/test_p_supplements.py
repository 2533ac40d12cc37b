"""Section P: supplements to all sections (P04 and P05 stand with the complex numbers of section I)."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax
from tests.conformance.support import (
    MulExp,
    SExp,
    answering,
    check,
    derivatives,
    gradients,
    gradients_eagerly,
    recorded,
    refuses,
    returning,
    same,
    slope,
)

pytestmark = pytest.mark.usefixtures("x64")

ONCE = "trying to differentiate twice a function that was marked with @once_differentiable"


class Once3(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    @fnjax.once_differentiable
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return 3 * x**2 * g


@pytest.mark.parametrize("path", ["backward()", "backward() mixed"])
def test_P01_once_differentiable(path):
    """Decision 4: the second derivative raises, also where PyTorch's grad drops the term silently (5 for 485)."""
    assert recorded("P01", "grad(inputs=x) mixed", "ok") == [5]
    first = slope(lambda x: Once3.apply(x) ** 2)
    loss = first if path == "backward()" else lambda x: first(x) + 5 * x
    with refuses(recorded("P01", path), ONCE, "Once3"):
        slope(loss)(jnp.array([2.0]))
    with refuses(recorded("P01", path), ONCE, "Once3"):
        jax.jit(slope(loss))(jnp.array([2.0]))


def test_P02_once_differentiable_once():
    """Marked with once_differentiable, a backward is the same at first order."""
    check("P02", g=gradients(Once3.apply, jnp.array([2.0]))[0])


class Once3k(fnjax.Function):
    @staticmethod
    def forward(ctx, x, k):
        return x * k

    @staticmethod
    @fnjax.once_differentiable
    def backward(ctx, g):
        return g * 3, None


def test_P03_once_differentiable_with_none():
    """A linear backward that returns None for some inputs raises too."""
    first = slope(lambda x: Once3k.apply(x, 3.0) ** 2)
    x = jnp.array([2.0])
    check("P03", g=first(x))
    with refuses(recorded("P03", "gg"), ONCE, "Once3k"):
        slope(first)(x)


def test_P06_output_cut_from_its_input():
    """The rule holds whatever the operations of forward say: here that the output does not depend on x."""
    assert recorded("P06", "with", "ok") == "FBackward"
    fn = answering(lambda ctx, g: g * 2, lambda ctx, x: jax.lax.stop_gradient(x) * 2)
    assert gradients(fn.apply, jnp.array([1.0])) == (2.0,)


def test_P07_operations_of_forward():
    """The operations of forward do not take part in the derivative."""
    check("P07", gx=gradients(answering(lambda ctx, g: g * 50).apply, jnp.array([1.0]))[0])


def test_P09_gradient_in_the_output():
    """Differentiating in the output of a Function does not run its backward."""
    fn = answering(lambda ctx, g: pytest.fail("backward was run"))
    check("P09", g=gradients(lambda y: y * 3, fn.apply(jnp.array([1.0])))[0], called=0)


def test_P10_two_cotangents():
    """A gradient for each of two outputs, and for one of them alone."""
    fn = returning(lambda x: (x * 2, x.sum()), lambda ctx, a, b: 2 * a + jnp.broadcast_to(b, (2,)))
    x = jnp.array([1.0, 2.0])
    _, pullback = jax.vjp(fn.apply, x)
    _, first = jax.vjp(lambda x: fn.apply(x)[0], x)
    # The second output's 3 is in PyTorch's `none` an implicit 1.
    check("P10", both=pullback((jnp.ones(2), jnp.array(3.0)))[0], none=pullback((jnp.ones(2), jnp.array(1.0)))[0])
    assert first(jnp.ones(2))[0].tolist() == [2.0, 2.0]


def test_P13_zeros_of_an_unused_output():
    """The zeros for an unused output have its dtype and shape."""
    seen = {}
    fn = returning(
        lambda x: (x.sum(), x.astype(jnp.float32).reshape(2, 1)),
        lambda ctx, a, c: seen.update(c=c) or jnp.broadcast_to(a, (2,)),
    )
    gradients_eagerly(lambda x: fn.apply(x)[0], jnp.array([1.0, 2.0]))
    check("P13", **seen)


class Kinked(fnjax.Function):
    """2 x or 5 x, by a Python `if`."""

    @staticmethod
    def forward(ctx, x):
        ctx.k = 2.0 if x.sum().item() > 0 else 5.0
        return x * ctx.k

    @staticmethod
    def backward(ctx, g):
        return g * ctx.k


class Clipped(fnjax.Function):
    """A Python `if` in backward."""

    @staticmethod
    def forward(ctx, x):
        return x * 2

    @staticmethod
    def backward(ctx, g):
        return g * 2 if jnp.abs(g).sum().item() < 1 else jnp.clip(g, -1, 1)


class NumPyTanh(fnjax.Function):
    """NumPy in both methods."""

    @staticmethod
    def forward(ctx, x):
        ctx.a = np.tanh(np.asarray(x))
        return jnp.asarray(ctx.a)

    @staticmethod
    def backward(ctx, g):
        return np.asarray(g) * (1 - ctx.a**2)


def test_P14_python_if_in_forward():
    """Decision 9: outside jit forward may look at the values, also under grad."""
    gx, gz = gradients_eagerly(lambda x, z: Kinked.apply(x) + Kinked.apply(z), jnp.array([1.0]), jnp.array([-1.0]))
    check("P14", gx=gx, gz=gz)


def test_P15_python_if_in_backward():
    """Decision 9: outside jit backward may look at the values."""
    _, pullback = jax.vjp(Clipped.apply, jnp.array([1.0, 2.0]))
    check("P15", gx=pullback(jnp.array([10.0, -0.5]))[0])


def test_P16_numpy():
    """Decision 9: outside jit forward and backward may use NumPy."""
    check("P16", gx=gradients_eagerly(NumPyTanh.apply, jnp.array([0.3, -0.2]))[0])


@pytest.mark.parametrize("function", [Kinked, Clipped, NumPyTanh])
def test_P14_P15_P16_under_jit(function):
    """Under jit the error names the method and says what to write instead."""
    with pytest.raises((jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError)) as caught:
        jax.jit(slope(function.apply))(jnp.array([0.3, -0.2]))
    notes = "\n".join(caught.value.__notes__)
    method = "backward" if function is Clipped else "forward"
    for word in (f"{function.__name__}.{method}", "jax.lax.cond", "jax.pure_callback", "outside jax.jit"):
        assert word in notes
    assert re.search(r"test_p_supplements\.py, line \d+", notes)


class Linear(fnjax.Function):
    """PyTorch's documentation: x wᵀ + b."""

    @staticmethod
    def forward(ctx, x, w, b=None):
        ctx.save_for_backward(x, w, b)
        y = x @ w.T
        return y if b is None else y + b

    @staticmethod
    def backward(ctx, g):
        x, w, b = ctx.saved_tensors
        gx = gw = gb = None
        if ctx.needs_input_grad[0]:
            gx = g @ w
        if ctx.needs_input_grad[1]:
            gw = g.T @ x
        if b is not None and ctx.needs_input_grad[2]:
            gb = g.sum(0)
        return gx, gw, gb


def test_P20_linear():
    """LinearFunction, with and without its optional bias, is right in all arguments at two orders."""
    x, w, b = jnp.array([[1.0, 2.0], [3.0, 4.0]]), jnp.full((1, 2), 0.5), jnp.array([0.1])
    gw, gb = gradients(lambda w, b: Linear.apply(x, w, b), w, b)
    check("P20", gw=gw, gb=gb, gw_nobias=gradients(lambda w: Linear.apply(x, w), w)[0])
    loss = lambda f: lambda *args: (f(*args) ** 3).sum()
    plain = lambda x, w, b: x @ w.T + b
    for order in (lambda f: jax.grad(f, (0, 1, 2))), (lambda f: jax.jacrev(jax.grad(f, (0, 1, 2)), (0, 1, 2))):
        got, want = (jax.jit(order(loss(f)))(x, w, b) for f in (Linear.apply, plain))
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-12), got, want)


def test_P22_reserved_names_of_ctx():
    """Names that ctx has for itself cannot be set; those that say what was saved or marked can."""
    outcomes = recorded("P22")

    def fwd(ctx, x):
        for name, outcome in outcomes.items():
            if "ok" in outcome:
                setattr(ctx, name, "abc" if name == "name" else (x,))
            else:
                assert "is not writable" in outcome["msg"]
                with pytest.raises(AttributeError, match=f"attribute '{name}' of 'FnBackward' objects is not writable"):
                    setattr(ctx, name, (x,))
        ctx.to_save = ctx.dirty_tensors = None
        return x * 2

    fn = answering(lambda ctx, g: g if ctx.name == "abc" and ctx.saved_tensors == () else None, fwd)
    assert {k for k, v in outcomes.items() if "ok" in v} == {"name", "to_save", "dirty_tensors"}
    assert gradients(fn.apply, jnp.array([1.0])) == (1.0,)


@pytest.mark.parametrize(("path", "name"), [("to_save", "to_save"), ("nd", "non_differentiable")])
def test_P23_lists_in_place_of_tuples(path, name):
    """A list assigned where ctx takes a tuple is an error."""
    fn = answering(lambda ctx, g: g, lambda ctx, x: setattr(ctx, name, [x]))
    with refuses(recorded("P23", path), f"{name} attribute is expected to be a tuple but is", "Fn"):
        fn.apply(jnp.array([1.0]))


def test_P25_vmap_and_grad_with_an_attribute():
    """An array kept as an attribute goes through vmap and grad in either order."""
    fn = answering(lambda ctx, g: 2 * ctx.x * g, lambda ctx, x: setattr(ctx, "x", x) or x * x)
    x = jnp.array([[1.0, 2.0], [3.0, 4.0]])
    same(jax.vmap(jax.grad(lambda x: fn.apply(x).sum()))(x), recorded("P25", "vmap_grad", "ok"))
    same(gradients(jax.vmap(fn.apply), x)[0], recorded("P25", "grad_vmap", "ok"))


def test_P27_gradient_in_one_input():
    """A call in which one input is differentiated has needs_input_grad True for that one only (decision 6)."""
    seen = []

    def fwd(ctx, a, b):
        ctx.save_for_backward(a, b)
        seen.append(tuple(ctx.needs_input_grad))
        return a * b

    fn = answering(lambda ctx, g: (g * ctx.saved_tensors[1], g * ctx.saved_tensors[0]), fwd)
    check("P27", gx=gradients(lambda x: fn.apply(x, jnp.array([3.0])), jnp.array([2.0]))[0])
    assert recorded("P27", "gy") is None
    assert seen[-1] == (True, False)


def test_P28_checkpoint():
    """Under jax.checkpoint the derivatives are the same."""
    g, gg = derivatives(jax.checkpoint(lambda x: MulExp.apply(x, 1.0)), jnp.array([0.5]))
    check("P28", g=g, gg=gg)


@pytest.mark.parametrize("run", [lambda f: f, jax.jit, jax.grad], ids=["eager", "jit", "grad"])
def test_P29_exception_in_forward(run):
    """An exception in forward passes through, and the next call is untouched by it."""

    def fwd(ctx, x):
        raise ValueError("fwd")

    with pytest.raises(ValueError, match="fwd") as caught:
        run(answering(lambda ctx, g: g, fwd).apply)(1.0)
    assert str(caught.value) == recorded("P29", "a", "msg")
    assert run(lambda x: MulExp.apply(x, 2.0))(0.0) == 2.0


def test_P30_repr():
    """The representation of ctx names the class."""
    seen = []
    fn = type("MulExp", (MulExp,), {"backward": staticmethod(lambda ctx, g: seen.append(repr(ctx)) or (g, None))})
    gradients(lambda x: fn.apply(x, 1.0), jnp.array([1.0]))
    assert "MulExpBackward object" in recorded("P30", "repr")
    assert "MulExpBackward object" in seen[0]


def test_P31_pullback_called_twice():
    """A pullback gives for each cotangent its own gradient."""
    _, pullback = jax.vjp(SExp.apply, jnp.array([0.1, 0.2]))
    check("P31", a=pullback(jnp.array([1.0, 0.0]))[0], b=pullback(jnp.array([0.0, 2.0]))[0])


def test_P32_vectorised_jacobian():
    """A Jacobian by jax.jacrev, which vmaps a pullback, is right for the style with ctx."""
    check("P32", J=jax.jacrev(lambda x: MulExp.apply(x, 2.0))(jnp.array([0.1, 0.2])))


def test_P33_two_applications():
    """Two calls of a Function have each their own ctx."""
    gx, gy = gradients(lambda x, y: MulExp.apply(x, 1.0) + MulExp.apply(y, 10.0), jnp.array([1.0]), jnp.array([2.0]))
    check("P33", gx=gx, gy=gy, same_fn=False)
