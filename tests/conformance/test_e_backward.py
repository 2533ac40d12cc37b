"""Section E of the conformance table: gradients returned by backward."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax
from tests.conformance.support import answering, check, gradients, is_zero, recorded, refuses, same

pytestmark = pytest.mark.usefixtures("x64")


def test_E01_none_for_an_input():
    """None is a zero gradient: JAX does not tell it from an unused input."""
    gx, gy = gradients(answering(lambda ctx, g: (None, g * 3)).apply, jnp.array([1.0]), jnp.array([2.0]))
    assert recorded("E01", "gx") is None
    assert is_zero(gx)
    check("E01", gy=gy)


@pytest.mark.parametrize(
    ("path", "bwd", "inputs", "phrase"),
    [
        pytest.param((), lambda ctx, g: g, 2, "(expected 2, got 1)", id="E02"),
        pytest.param((), lambda ctx, g: (g, g), 1, "(expected 1, got 2)", id="E04"),
        pytest.param(("two",), lambda ctx, g: [g, g], 2, "(expected 2, got 1)", id="E13-two"),
        pytest.param(("two_inputs",), lambda ctx, g: None, 2, "(expected 2, got 1)", id="E14-two"),
    ],
)
def test_number_of_gradients(request, path, bwd, inputs, phrase):
    """Too few gradients, too many, or a list in place of a tuple are an error that counts them."""
    case = request.node.callspec.id.partition("-")[0]
    with refuses(recorded(case, *path), f"returned an incorrect number of gradients {phrase}", "Fn"):
        gradients(answering(bwd).apply, *[jnp.array([1.0])] * inputs)


@pytest.mark.parametrize(
    "bwd",
    [
        pytest.param(lambda ctx, g: (g * 3, None, None), id="E03"),
        pytest.param(lambda ctx, g: (g * 3,), id="E28"),
    ],
)
def test_forms_of_one_gradient(request, bwd):
    """Surplus Nones are cut, and a tuple of one is the one gradient."""
    check(request.node.callspec.id, gx=gradients(answering(bwd).apply, jnp.array([1.0]))[0])


@pytest.mark.parametrize(
    ("path", "shape", "grad_shape"),
    [
        pytest.param((), (2,), (5,), id="E05"),
        pytest.param(("scalar_for_vec",), (2,), (), id="E07-scalar"),
        pytest.param(("1_for_2",), (2,), (1,), id="E07-one"),
        pytest.param(("1_for_1x1",), (1, 1), (1,), id="E07-fewer-axes"),
    ],
)
def test_shapes_that_do_not_fit(request, path, shape, grad_shape):
    """A gradient of another shape, also one that would broadcast to the input's, is an error that gives both shapes."""
    case = request.node.callspec.id.partition("-")[0]
    phrase = (
        f"returned an invalid gradient at index 0 - got {list(grad_shape)} but expected shape compatible with "
        f"{list(shape)}"
    )
    with refuses(recorded(case, *path), phrase, "Fn"):
        gradients(answering(lambda ctx, g: jnp.ones(grad_shape)).apply, jnp.ones(shape))


@pytest.mark.parametrize(
    ("name", "shape", "grad_shape"), [("g3", 3, (4, 3)), ("g0", (), (2, 3)), ("g21", (2, 1), (2, 3))]
)
def test_E06_broadcast_gradient(name, shape, grad_shape):
    """A gradient of a shape to which the input broadcasts is summed to the input's."""
    fn = answering(lambda ctx, g: jnp.arange(float(np.prod(grad_shape))).reshape(grad_shape))
    check("E06", **{name: gradients(fn.apply, jnp.ones(shape))[0]})


@pytest.mark.parametrize(
    ("name", "dtype", "grad"),
    [
        pytest.param("gx", "float64", np.array([1.1, 2.2], "float32"), id="E08-float32"),
        pytest.param("gz", "float16", np.array([1.1, 2.2], "float64"), id="E08-float16"),
        pytest.param("gx", "float64", np.array([1, 2]), id="E09"),
    ],
)
def test_dtype_of_a_gradient(request, name, dtype, grad):
    """A gradient of another dtype is cast to the input's."""
    fn = answering(lambda ctx, g: jnp.asarray(grad))
    case = request.node.callspec.id.partition("-")[0]
    check(case, **{name: gradients(fn.apply, jnp.array([1.0, 2.0], dtype))[0]})


def test_E10_complex_gradient_for_a_real_input():
    """A complex gradient for a real input is an error."""
    with refuses(recorded("E10"), "(input_is_complex == grad_is_complex)", "Fn"):
        gradients(answering(lambda ctx, g: jnp.array([1 + 2j, 3 - 4j])).apply, jnp.array([1.0, 2.0]))


def test_E11_real_gradient_for_a_complex_input():
    """A real gradient for a complex input becomes complex."""
    fn = answering(lambda ctx, g: jnp.array([2.5]))
    check("E11", gx=gradients(lambda x: jnp.abs(fn.apply(x)), jnp.array([1 + 1j]))[0])


@pytest.mark.parametrize(
    ("path", "value", "got"),
    [
        pytest.param(("float",), 2.0, "float", id="E12-float"),
        pytest.param(("one",), [jnp.ones(1)], "list", id="E13-one"),
    ],
)
def test_what_is_no_gradient(request, path, value, got):
    """A Python number or a list in place of an array is an error that names its type."""
    case = request.node.callspec.id.partition("-")[0]
    with refuses(recorded(case, *path), f"expected Variable or None (got {got})", "Fn"):
        gradients(answering(lambda ctx, g: value).apply, jnp.array([1.0]))


def test_E12_numpy_gradient():
    """Decision 5: a NumPy array is an array, where PyTorch refuses it."""
    assert recorded("E12", "numpy", "exc") == "RuntimeError"
    assert gradients(answering(lambda ctx, g: np.full(1, 3.0)).apply, jnp.array([1.0])) == (3.0,)


def test_E14_no_return():
    """A backward that returns nothing gives the one input no gradient: zeros, with a warning beyond PyTorch's."""
    assert recorded("E14", "one_input") == {"ok": None}
    with pytest.warns(UserWarning, match="Fn.backward returned None for every argument"):
        assert is_zero(gradients(answering(lambda ctx, g: None).apply, jnp.array([1.0])))


class ForwardOnly(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2


def test_E15_no_backward():
    """A class without backward may be called; differentiating it is a NotImplementedError."""
    x = jnp.array([1.0])
    check("E15", fwd_ok=ForwardOnly.apply(x))
    same(jax.jit(ForwardOnly.apply)(x), recorded("E15", "fwd_ok"))
    phrase = "You must implement either the backward or vjp method for your custom autograd.Function to use it with"
    for f in ForwardOnly.apply, jax.jit(ForwardOnly.apply):
        with refuses(recorded("E15", "bwd"), phrase, "ForwardOnly"):
            gradients(f, x)


def test_E16_vjp_is_backward():
    """`vjp` is another name for backward."""

    class Fn(ForwardOnly):
        @staticmethod
        def vjp(ctx, g):
            return g * 7

    check("E16", gx=gradients(Fn.apply, jnp.array([1.0]))[0])


def test_E17_backward_and_vjp():
    """A class with both backward and vjp is an error (here already when it is defined)."""
    phrase = (
        "Implementing both 'backward' and 'vjp' for a custom Function is not allowed. You should only implement one"
    )
    with refuses(recorded("E17"), phrase, "Fn"):

        class Fn(ForwardOnly):
            @staticmethod
            def vjp(ctx, g):
                return g

            @staticmethod
            def backward(ctx, g):
                return g


def test_E18_gradient_that_is_not_needed():
    """A gradient for an input that needs none is dropped unchecked."""
    fn = answering(lambda ctx, g: (g * 3, jnp.ones(99)))
    check("E18", gx=gradients(lambda x: fn.apply(x, jnp.array([2.0])), jnp.array([1.0]))[0])


class MyError(Exception):
    pass


@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_E19_exception_in_backward(run):
    """An exception in backward passes through as it is, each time."""

    def bad(ctx, g):
        raise MyError("from backward", 42)

    f = run(jax.grad(lambda x: answering(bad).apply(x).sum()))
    for name in "a", "again":
        with pytest.raises(MyError) as caught:
            f(jnp.array([1.0]))
        assert str(caught.value) == recorded("E19", name, "msg")


def test_E20_parameters_of_backward():
    """A backward that takes fewer gradients than there are outputs is a TypeError."""

    class Fn(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, g):
            return g

    with refuses(recorded("E20"), "Fn.backward() takes 2 positional arguments but 3 were given", "Fn"):
        gradients(lambda x: Fn.apply(x)[0], jnp.array([1.0]))


def test_E23_one_gradient_for_two_inputs():
    """The same array may be the gradient of two inputs."""
    fn = answering(lambda ctx, g: (g, g), lambda ctx, a, b: a + b)
    gx, gy = gradients(fn.apply, jnp.array([1.0]), jnp.array([2.0]))
    check("E23", gy=gy)
    same(gx, recorded("E23", "gy"))


def test_E27_nan_and_inf():
    """Gradients that are nan or inf pass."""
    fn = answering(lambda ctx, g: jnp.array([jnp.nan, jnp.inf]))
    (gx,) = gradients(fn.apply, jnp.array([1.0, 2.0]))
    check("E27", gx=[str(v) for v in gx.tolist()])


def test_E29_straight_through():
    """A gradient that is not the derivative is taken on trust."""
    fn = answering(lambda ctx, g: g, lambda ctx, x: jnp.round(x))
    check("E29", gx=gradients(lambda x: fn.apply(x) * 3, jnp.array([0.4, 1.6]))[0])
