"""Section D: the style with setup_context."""

import jax
import jax.numpy as jnp
import pytest

import fnjax
from tests.conformance.support import check, derivatives, gradients, gradients_eagerly, recorded, refuses

pytestmark = pytest.mark.usefixtures("x64")


def setting_up(forward, setup_context, backward=lambda ctx, *gs: gs[0]):
    """A Function of the style with setup_context, of three methods."""
    methods = {"forward": forward, "setup_context": setup_context, "backward": backward}
    return type("Fn", (fnjax.Function,), {k: staticmethod(v) for k, v in methods.items()})


def test_D01_what_setup_context_is_given():
    """The method setup_context gets the tuple of inputs and the bare output, neither of them being differentiated."""
    seen = {}

    def setup(ctx, inputs, output):
        seen.update(inputs_type=type(inputs).__name__, output=output)
        ctx.k = inputs[1]

    fn = setting_up(lambda x, k: x * k, setup, lambda ctx, g: (g * ctx.k, None))
    (gx,) = gradients_eagerly(lambda x: fn.apply(x, 4.0), jnp.array([1.0]))
    check("D01", gx=gx, inputs_type=seen["inputs_type"], grad_mode=False, out_rg=False)
    assert isinstance(seen["output"], jax.Array)
    assert not isinstance(seen["output"], jax.core.Tracer)
    gradients(lambda x: fn.apply(x, 4.0), jnp.array([1.0]))


def test_D02_tuple_output():
    """A tuple of outputs reaches setup_context as a tuple."""
    seen = {}

    def setup(ctx, inputs, output):
        seen["output_type"] = type(output).__name__

    fn = setting_up(lambda x: (x * 2, x * 3), setup, lambda ctx, a, b: 2 * a + 3 * b)

    def f(x):
        a, b = fn.apply(x)
        return a + 10 * b

    check("D02", gx=gradients(f, jnp.array([1.0]))[0], **seen)


def test_D03_setup_context_and_ctx_in_forward():
    """A forward that takes ctx next to setup_context is a TypeError (here already when the class is defined)."""
    with refuses(recorded("D03"), "missing a required argument: 'x'", "Fn"):
        setting_up(lambda ctx, x: x * 2, lambda ctx, inputs, output: None).apply(jnp.array([1.0]))


def test_D04_neither_setup_context_nor_ctx():
    """A forward without ctx and without setup_context is a TypeError."""

    class Fn(fnjax.Function):
        @staticmethod
        def forward(x):
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g

    with refuses(recorded("D04"), "Fn.forward() takes 1 positional argument but 2 were given", "Fn"):
        Fn.apply(jnp.array([1.0]))


def test_D05_input_returned_and_saved():
    """An input that is returned as it is may be saved: harmless in JAX, where PyTorch has an error."""
    assert recorded("D05", "exc") == "RuntimeError"
    fn = setting_up(
        lambda x: x, lambda ctx, inputs, output: ctx.save_for_backward(output), lambda ctx, g: g * ctx.saved_tensors[0]
    )
    assert gradients(fn.apply, jnp.array([3.0])) == (3.0,)


def test_D06_return_value_of_setup_context():
    """The return value of setup_context is ignored."""
    fn = setting_up(lambda x: x * 2, lambda ctx, inputs, output: 12345, lambda ctx, g: g * 2)
    x = jnp.array([1.0])
    check("D06", y=fn.apply(x), gx=gradients(fn.apply, x)[0])


def test_D07_intermediate_as_an_extra_output():
    """An intermediate that is returned and saved has its derivative at every order."""

    def backward(ctx, gy, gdx):
        x, dx = ctx.saved_tensors
        return gy * dx + gdx * 6 * x

    cube = setting_up(
        lambda x: (x**3, 3 * x**2),
        lambda ctx, inputs, output: ctx.save_for_backward(inputs[0], output[1]),
        backward,
    )
    g, gg, ggg = derivatives(lambda x: cube.apply(x)[0], jnp.array([2.0]), 3)
    check("D07", g=g, gg=gg, ggg=ggg)


@pytest.mark.parametrize("run", [lambda f: f, jax.jit, jax.grad], ids=["eager", "jit", "grad"])
def test_D08_exception_in_setup_context(run):
    """An exception in setup_context passes through."""

    def setup(ctx, inputs, output):
        raise KeyError("boom")

    assert recorded("D08") == {"exc": "KeyError", "msg": "'boom'"}
    with pytest.raises(KeyError) as caught:
        run(setting_up(lambda x: x * 2, setup).apply)(jnp.array(1.0))
    assert caught.value.args == ("boom",)


def test_D09_marks_in_setup_context():
    """Marks and materialisation may be set in setup_context."""
    seen = {}

    def setup(ctx, inputs, output):
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)

    fn = setting_up(lambda x: (x * 2, x * 3), setup, lambda ctx, a, b: seen.update(b=b) or 2 * a)
    check("D09", gx=gradients(lambda x: sum(fn.apply(x)), jnp.array([1.0]))[0], **seen)


def test_D10_inherited_setup_context():
    """An inherited setup_context counts; ctx has the name of the subclass."""
    base = setting_up(lambda x: x * 2, lambda ctx, inputs, output: setattr(ctx, "k", 2))
    seen = {}

    class Sub(base):
        @staticmethod
        def backward(ctx, g):
            seen["name"] = ctx.name()
            return g * ctx.k * 10

    check("D10", gx=gradients(Sub.apply, jnp.array([1.0]))[0], **seen)
