"""Section L: the classes of PyTorch's C++ API, with the same words on ctx."""

import jax
import jax.numpy as jnp
import pytest

import fnjax
from tests.conformance.support import answering, check, gradients, gradients_eagerly, recorded, refuses, same

pytestmark = pytest.mark.usefixtures("x64")


def test_L01_saved_data():
    """`ctx.saved_data` takes anything, and `get_saved_variables()` gives what was saved."""

    class MulC(fnjax.Function):
        @staticmethod
        def forward(ctx, a, k, b):
            ctx.saved_data["k"] = k
            ctx.save_for_backward(a, b)
            return a + k * b + a * b

        @staticmethod
        def backward(ctx, g):
            k = ctx.saved_data["k"]
            a, b = ctx.get_saved_variables()
            return g + g * b, None, g * k + g * a

    x, y = jnp.array([1.0, 2.0]), jnp.array([3.0, 4.0])
    gx, gy = gradients(lambda x, y: MulC.apply(x, 2, y), x, y)
    check("L01", o=MulC.apply(x, 2, y), gx=gx, gy=gy)


def test_L02_needs_input_grad_as_a_call():
    """`ctx.needs_input_grad(i)` tells what is being differentiated, as in C++."""
    seen = []

    class NigC(fnjax.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.save_for_backward(a, b)
            return a * b

        @staticmethod
        def backward(ctx, g):
            a, b = ctx.saved_tensors
            needs = [ctx.needs_input_grad(i) for i in range(2)]
            assert ctx.needs_input_grad((0, 2))
            assert ctx.needs_input_grad([(0, 1), (1, 2)])
            seen[:] = map(int, needs)
            return (g * b if needs[0] else None), (g * a if needs[1] else None)

    x, y = jnp.array([2.0]), jnp.array([3.0])
    check("L02", g=gradients(lambda x: NigC.apply(x, y), x)[0], **{"grad(x) only": seen, "y no grad": seen})
    gradients(NigC.apply, x, y)
    check("L02", **{"backward()": seen})


def test_L03_optional_array():
    """An argument that may be None counts as an array only when it is one."""

    class OptC(fnjax.Function):
        @staticmethod
        def forward(ctx, a, b):
            ctx.saved_data["has"] = b is not None
            ctx.save_for_backward(a, b)
            return a * 2 if b is None else a * b

        @staticmethod
        def backward(ctx, g):
            a, b = ctx.saved_tensors
            return (g * b, g * a) if ctx.saved_data["has"] else (g * 2, None)

    x, b = jnp.array([2.0]), jnp.array([3.0])
    check("L03", none=gradients(lambda x: OptC.apply(x, None), x)[0])
    gx, gb = gradients(OptC.apply, x, b)
    same({"gx": gx, "gb": gb}["gx"], recorded("L03", "given", "ok", "gx"))
    same(gb, recorded("L03", "given", "ok", "gb"))


def counted(given, none):
    """The gradient of a Function of (x, static, static) that returns so many arrays and Nones."""

    class CntC(fnjax.Function):
        @staticmethod
        def forward(ctx, a, given, none):
            return a * 2

        @staticmethod
        def backward(ctx, g):
            return (g * 2,) * given + (None,) * none

    return gradients(lambda x: CntC.apply(x, given, none), jnp.array([2.0]))


@pytest.mark.parametrize(
    ("given", "none"), [pytest.param(1, 2, id="L04-exact"), pytest.param(1, 5, id="L04-more-nones")]
)
def test_number_of_gradients(given, none):
    """Surplus undefined gradients are tolerated."""
    assert counted(given, none) == (2.0,)


@pytest.mark.parametrize(
    ("given", "none", "name", "phrase"),
    [
        pytest.param(
            1, 0, "1 def only (too few)", "an incorrect number of gradients (expected 3, got 1)", id="L04-few"
        ),
        pytest.param(4, 0, "4 def", "an incorrect number of gradients (expected 3, got 4)", id="L04-many"),
        pytest.param(2, 1, "2 def + 1 undef", "the corresponding forward input was not a Variable", id="L04-static"),
    ],
)
def test_wrong_number_of_gradients(given, none, name, phrase):
    """Too few or too many gradients, or one for a static argument, are errors."""
    with refuses(recorded("L04", name), phrase, "CntC"):
        counted(given, none)


@pytest.mark.parametrize("materialize", [True, False])
def test_L05_set_materialize_grads(materialize):
    """An unused output gives zeros, or nothing."""
    seen = []

    class MatC(fnjax.Function):
        @staticmethod
        def forward(ctx, a, materialize):
            ctx.set_materialize_grads(materialize)
            return a * 2, a * 3

        @staticmethod
        def backward(ctx, *gs):
            seen[:] = [int(g is not None) for g in gs]
            return gs[0] * 2, None

    gradients(lambda x: MatC.apply(x, materialize)[0], jnp.array([2.0]))
    check("L05", **{str(materialize): seen})


def test_L06_mark_non_differentiable():
    """A marked output gives zeros in its place."""
    seen = {}

    def fwd(ctx, a):
        x, y = a + 1, a + 2
        ctx.mark_non_differentiable(x)
        return x, y

    fn = answering(lambda ctx, gx, gy: seen.update(zero=[int(not gx.any())]) or gy, fwd)
    check("L06", gx=gradients_eagerly(lambda x: sum(fn.apply(x)), jnp.array([2.0]))[0], **seen)


def test_L07_mark_dirty():
    """Decision 8: a Function that was in place returns the new array, with the gradient of its backward."""

    def fwd(ctx, a):
        ctx.mark_dirty(a)
        return a + 1

    check("L07", gx=gradients(answering(lambda ctx, g: g * 7, fwd).apply, jnp.array([1.0]))[0])


def test_L08_list_of_arrays():
    """Decision 1: with `pytree = True` a list is traversed; its gradient is a list."""
    seen = []

    class ListC(fnjax.Function):
        pytree = True

        @staticmethod
        def forward(ctx, xs, y):
            seen.append(ctx.needs_input_grad)
            ctx.save_for_backward(*xs, y)
            return xs[0] * xs[1] * y

        @staticmethod
        def backward(ctx, g):
            a, b, y = ctx.saved_tensors
            return [g * b * y, g * a * y], g * a * b

    ga, gb, gy = gradients(lambda a, b, y: ListC.apply([a, b], y), *(jnp.array([v]) for v in (2.0, 3.0, 5.0)))
    check("L08", ga=ga, gb=gb, gy=gy)
    assert ([True, True], True) in seen


@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_L10_exception(run):
    """An exception in backward passes through."""

    def bwd(ctx, g):
        raise RuntimeError("boom in C++ backward")

    with pytest.raises(RuntimeError) as caught:
        run(jax.grad(lambda x: answering(bwd).apply(x).sum()))(jnp.array([1.0]))
    assert str(caught.value) == recorded("L10", "msg")
