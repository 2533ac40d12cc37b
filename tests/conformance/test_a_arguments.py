"""Section A: `apply` and its arguments."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax
from tests.conformance.support import (
    MulExp,
    answering,
    check,
    gradients,
    gradients_eagerly,
    is_zero,
    recorded,
    refuses,
    same,
)
from tests.test_program import operations

pytestmark = pytest.mark.usefixtures("x64")


class ScaleDefault(fnjax.Function):
    """x k, the style with ctx in forward."""

    @staticmethod
    def forward(ctx, x, k=5.0):
        ctx.k, ctx.given = k, len(ctx.needs_input_grad)
        return x * k

    @staticmethod
    def backward(ctx, g):
        ScaleDefault.given = ctx.given
        return g * ctx.k, None


class Identity(fnjax.Function):
    """X, the style with setup_context."""

    @staticmethod
    def forward(x):
        return x * 1

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, g):
        return g


def test_A01_numbers_among_the_arguments():
    """An array and a Python number may be mixed; the number has no gradient."""
    x = jnp.array([0.1, 0.2])
    (gx,) = gradients(lambda x: MulExp.apply(x, 3), x)
    check("A01", y=MulExp.apply(x, 3), gx=gx, grad_fn=MulExp._ctx.__name__, **{"name()": MulExp._ctx.name()})


def test_A02_nothing_is_recorded_outside_differentiation():
    """A call that nobody differentiates leaves nothing for backward: its program has the operations of forward only."""
    assert recorded("A02", "requires_grad") is False
    x = jnp.array([1.0])
    assert operations(lambda x: MulExp.apply(x, 2), x) == operations(lambda x: 2 * jnp.exp(x), x)


def test_A03_keyword_arguments():
    """Keyword arguments of the style with ctx are put in position."""
    x = jnp.array([1.0])
    same(MulExp.apply(x, k=2), recorded("A03", "ok"))
    same(gradients(lambda x: MulExp.apply(k=2, x=x), x)[0], recorded("A03", "ok"))


def test_A04_missing_argument():
    """A missing argument is a TypeError in Python's words."""
    with refuses(recorded("A04"), "MulExp.forward() missing 1 required positional argument: 'k'", "MulExp"):
        MulExp.apply(jnp.array([1.0]))


def test_A05_default_of_the_style_with_ctx():
    """A default that is not given has no slot among the gradients, and a trailing None for it may be returned."""
    x = jnp.array([1.0, 2.0])
    check("A05", gx=gradients(ScaleDefault.apply, x)[0], **{"len(needs_input_grad)": ScaleDefault.given})
    gradients(lambda x: ScaleDefault.apply(x, 5.0), x)
    check("A05", len2=ScaleDefault.given)


def test_A06_default_of_the_style_with_setup_context():
    """Next to setup_context defaults are bound: inputs and needs_input_grad have full length."""
    seen = {}

    class Fn(fnjax.Function):
        @staticmethod
        def forward(x, k=5.0):
            return x * k

        @staticmethod
        def setup_context(ctx, inputs, output):
            seen.update(inputs=len(inputs), nig=ctx.needs_input_grad)
            ctx.k = inputs[1]

        @staticmethod
        def backward(ctx, g):
            return g * ctx.k, None

    (gx,) = gradients(Fn.apply, jnp.array([1.0, 2.0]))
    check("A06", gx=gx, inputs=seen["inputs"], nig=list(seen["nig"]))


def test_A07_keyword_arguments_out_of_order():
    """Next to setup_context keyword arguments are bound by the signature of forward."""
    seen = {}

    class Fn(fnjax.Function):
        @staticmethod
        def forward(x, y, k=5.0):
            return x * y * k

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(inputs[0], inputs[1])
            ctx.k = inputs[2]
            seen["n"] = len(inputs)

        @staticmethod
        def backward(ctx, g):
            x, y = ctx.saved_tensors
            return g * y * ctx.k, g * x * ctx.k, None

    x, y = jnp.array([2.0]), jnp.array([3.0])
    gx, gy = gradients(lambda x, y: Fn.apply(y=y, x=x), x, y)
    check("A07", o=Fn.apply(y=y, x=x), gx=gx, gy=gy, n=seen["n"])


def test_A08_keyword_only_parameters_are_static():
    """Decision 1: PyTorch refuses a keyword-only parameter; here it takes a static value, and no array."""
    assert recorded("A08", "given", "exc") == "TypeError"

    class Fn(fnjax.Function):
        @staticmethod
        def forward(x, *, k=5.0):
            return x * k

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.n = len(inputs)

        @staticmethod
        def backward(ctx, g):
            assert ctx.n == 1
            return g * 5.0

    x = jnp.array([1.0])
    assert gradients(Fn.apply, x)[0] == gradients(lambda x: Fn.apply(x, k=5.0), x)[0] == 5.0
    with pytest.raises(TypeError, match=r"Fn\.forward\(\).*'k'"):
        Fn.apply(x, k=x)


@pytest.mark.parametrize(("style", "function", "args"), [("setup", Identity, ()), ("old", MulExp, (2,))])
def test_A09_unknown_keyword(style, function, args):
    """An unknown keyword argument is a TypeError in Python's words, in both styles."""
    with refuses(recorded("A09", style), "got an unexpected keyword argument 'zz'", function.__name__):
        function.apply(jnp.array([1.0]), *args, zz=1)


@pytest.mark.parametrize(
    ("style", "function", "args", "phrase"),
    [
        ("setup", Identity, (1,), "too many positional arguments"),
        ("old", MulExp, (2, 3), "MulExp.forward() takes 3 positional arguments but 4 were given"),
    ],
)
def test_A10_too_many_arguments(style, function, args, phrase):
    """An extra argument is a TypeError in Python's words, in both styles."""
    with refuses(recorded("A10", style), phrase, function.__name__):
        function.apply(jnp.array([1.0]), *args)


def test_A11_none_as_argument():
    """None passes through, needs no gradient and gets None."""
    seen = {}

    class Fn(fnjax.Function):
        @staticmethod
        def forward(ctx, x, b):
            seen["nig"] = list(ctx.needs_input_grad)
            return x * 2 if b is None else x * 2 + b

        @staticmethod
        def backward(ctx, g):
            return 2 * g, None

    check("A11", gx=gradients(lambda x: Fn.apply(x, None), jnp.array([1.0]))[0], nig=seen["nig"])


def test_A12_lists_are_not_traversed():
    """Decision 1: arrays in a list get no gradient, as in PyTorch, but a warning names the argument."""
    needs = []

    class Fn(fnjax.Function):
        @staticmethod
        def forward(ctx, xs):
            needs.append(list(ctx.needs_input_grad))
            return xs[0] * xs[1]

        @staticmethod
        def backward(ctx, g):
            raise AssertionError("nothing was differentiated")

    a, b = jnp.array([2.0]), jnp.array([3.0])
    with pytest.warns(UserWarning, match=r"Fn\.apply.*'xs'.*container"):
        grads = gradients_eagerly(lambda a, b: Fn.apply([a, b]), a, b)
    assert is_zero(grads)
    assert all(n == recorded("A12", "nig") for n in needs)


def test_A13_list_beside_an_array():
    """A list gets no gradient also where the array next to it does."""

    class Fn(fnjax.Function):
        @staticmethod
        def forward(ctx, x, xs):
            ctx.save_for_backward(x, xs[0])
            return x * xs[0]

        @staticmethod
        def backward(ctx, g):
            _, a = ctx.saved_tensors
            return g * a, None

    x, a = jnp.array([2.0]), jnp.array([3.0])
    with pytest.warns(UserWarning, match="'xs'"):
        gx, ga = gradients_eagerly(lambda x, a: Fn.apply(x, [a]), x, a)
    check("A13", gx=gx)
    assert recorded("A13", "ga") is None
    assert is_zero(ga)


def test_A14_gradient_for_a_number():
    """An array returned as the gradient of a number is an error that gives its position."""

    class Fn(fnjax.Function):
        @staticmethod
        def forward(ctx, x, k):
            return x * k

        @staticmethod
        def backward(ctx, g):
            return g, g

    phrase = "returned a gradient different than None at position 2, but the corresponding forward input was not a"
    with refuses(recorded("A14"), phrase, "Fn"):
        gradients(lambda x: Fn.apply(x, 3.0), jnp.array([2.0]))


def test_A15_other_objects():
    """A dict, a string and a callable reach forward as they are; decision 1: a NumPy array does as a JAX array."""
    given = {"a": 3.0}, "ab", lambda g: g * 7

    class Fn(fnjax.Function):
        @staticmethod
        def forward(ctx, x, d, s, f, n):
            assert d is given[0]
            assert s is given[1]
            assert f is given[2]
            assert isinstance(n, jax.Array)
            ctx.f = f
            return x * d["a"] + len(s) + n

        @staticmethod
        def backward(ctx, g):
            return ctx.f(g), None, None, None, None

    f = lambda x: Fn.apply(x, *given, np.ones(1))
    x = jnp.array([2.0])
    check("A15", y=f(x), gx=gradients(f, x)[0])


def test_A16_no_array():
    """A Function without any array among its arguments runs."""
    fill = answering(lambda ctx, g: None, lambda ctx, n: jnp.full((n,), 2.0, jnp.float32))
    check("A16", y=fill.apply(3))
    same(jax.jit(lambda: fill.apply(3))(), recorded("A16", "y"))


def test_A17_same_array_twice():
    """The two gradients of an array that was passed twice are added."""

    class Mul(fnjax.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a * b

        @staticmethod
        def backward(ctx, g):
            a, b = ctx.saved_tensors
            return g * b, 10 * g * a

    check("A17", gx=gradients(lambda x: Mul.apply(x, x), jnp.array([3.0]))[0])


def test_A18_forward_is_not_being_differentiated():
    """Decision 9: JAX has no grad mode; under outside jit grad forward and backward see concrete arrays."""
    seen = []
    fn = answering(lambda ctx, g: seen.append(g) or g * 2, lambda ctx, x: seen.append(x * 2) or x * 2)
    gradients_eagerly(fn.apply, jnp.array([1.0]))
    assert [recorded("A18", k) for k in ("mode", "y_rg", "bwd_mode")] == [False] * 3
    assert len(seen) >= 2
    assert not any(isinstance(value, jax.core.Tracer) for value in seen)


def test_A19_no_grad():
    """The counterpart of no_grad is stop_gradient: no gradient, and backward is not run."""
    assert recorded("A19", "rg") is False
    never = answering(lambda ctx, g: pytest.fail("backward was run"))
    assert is_zero(gradients(lambda x: jax.lax.stop_gradient(never.apply(x)) + 0 * x, jnp.array([1.0])))
    assert is_zero(gradients(lambda x: never.apply(jax.lax.stop_gradient(x)), jnp.array([1.0])))


def test_A20_missing_forward():
    """A class without forward is told so when it is applied."""

    class Fn(fnjax.Function):
        pass

    phrase = "You must implement the forward function for custom autograd.Function."
    with refuses(recorded("A20"), phrase, "Fn"):
        Fn.apply(jnp.array([1.0]))


def test_A21_identity_of_the_argument():
    """Outside every transformation forward gets the very array that was given."""
    x, seen = jnp.array([1.0]), []
    answering(lambda ctx, g: g, lambda ctx, a: seen.append(a is x) or a * 1).apply(x)
    assert seen == [recorded("A21", "same")]


def test_A22_forward_called_directly():
    """`Fn.forward(x)` is a plain function: its own operations are differentiated."""

    class Fn(Identity):
        @staticmethod
        def forward(x):
            return x * x

        @staticmethod
        def backward(ctx, g):
            return g * 100

    check("A22", g=gradients(Fn.forward, jnp.array([3.0]))[0])


def test_A23_kinds_of_arrays():
    """Arrays without axes, empty ones and integers are arguments; an integer array needs no gradient."""
    seen = {}

    class Fn(fnjax.Function):
        @staticmethod
        def forward(ctx, x, i):
            seen["nig"] = list(ctx.needs_input_grad)
            return x * 2 + i.sum()

        @staticmethod
        def backward(ctx, g):
            return g * 2, None

    f = lambda x: Fn.apply(x, jnp.array([1, 2]))
    check("A23", g0=gradients(f, jnp.array(1.5))[0], ge=gradients(f, jnp.array([]))[0], nig=seen["nig"])


def test_A24_gradient_for_an_integer_array():
    """A gradient for an array that needs none is dropped unchecked."""
    fn = answering(lambda ctx, g: (g * 2, jnp.ones(99)))
    check("A24", gx=gradients(lambda x: fn.apply(x, jnp.array([1, 2])), jnp.array([1.0]))[0])
