"""Section C, second part: marks, materialisation, names and class flags."""

import jax
import jax.numpy as jnp
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
)

pytestmark = pytest.mark.usefixtures("x64")


def test_C16_mark_dirty():
    """Decision 8: a Function that was in place returns the new array; mark_dirty of the input changes nothing."""

    def fwd(ctx, x):
        ctx.mark_dirty(x)
        return x + 1

    inc = answering(lambda ctx, g: g * 7, fwd)
    x = jnp.array([1.0])
    check("C16", val=inc.apply(x), g=gradients(inc.apply, x)[0])
    assert x == 1.0


def test_C18_dirty_input_that_is_not_returned():
    """Decision 8: arrays cannot change, so PyTorch's error for a dirty input that is not returned cannot apply."""
    assert recorded("C18", "exc") == "RuntimeError"

    def fwd(ctx, x):
        ctx.mark_dirty(x)
        return x * 2

    assert answering(lambda ctx, g: g, fwd).apply(jnp.array([1.0])) == 2.0


def test_C19_mark_dirty_of_what_is_no_input():
    """Marking an array that is not an input as dirty warns."""
    (warning,) = recorded("C19", "warnings")

    def fwd(ctx, x):
        y = x * 2
        ctx.mark_dirty(y)
        return y

    with pytest.warns(UserWarning, match="not an input") as caught:
        check("C19", ok=answering(lambda ctx, g: g * 2, fwd).apply(jnp.array([1.0])))
    assert str(caught[0].message).startswith(warning.removeprefix("UserWarning: "))
    assert "Fn" in str(caught[0].message)


def marking(method, *values):
    """A Function whose forward calls a method of ctx with what is not allowed."""

    def fwd(ctx, x):
        getattr(ctx, method)(*values)
        return x * 2

    return answering(lambda ctx, g: g, fwd)


@pytest.mark.parametrize(
    ("method", "values", "phrase"),
    [
        pytest.param("mark_dirty", (3,), "mark_dirty can only accept variables, but argument ", id="C20"),
        pytest.param(
            "mark_non_differentiable",
            (3,),
            "mark_non_differentiable only accepts variable arguments, but got ",
            id="C24",
        ),
        pytest.param(
            "set_materialize_grads", (1,), "set_materialize_grads received an invalid combination of arg", id="C31"
        ),
        pytest.param(
            "save_for_forward", (3,), "save_for_forward expects all arguments to be tensors; you should save", id="C32"
        ),
    ],
)
def test_what_the_methods_of_ctx_refuse(request, method, values, phrase):
    """A method of ctx refuses what it cannot take, with PyTorch's type and words."""
    with refuses(recorded(request.node.callspec.id), phrase, "Fn"):
        marking(method, *values).apply(jnp.array([1.0]))


def two_outputs(mark, bwd=lambda ctx, ga, gb: gb):
    """(x + 1, x + 2) with marks."""

    def fwd(ctx, x):
        a, b = x + 1, x + 2
        mark(ctx, a, b)
        return a, b

    return answering(bwd, fwd)


def test_C23_non_differentiable_output():
    """A marked output carries no gradient; backward gets zeros in its place, whatever the loss does with it."""
    seen = {}

    def bwd(ctx, ga, gb):
        seen.update(ga=ga, gb=gb)
        return gb

    fn = two_outputs(lambda ctx, a, b: ctx.mark_non_differentiable(a), bwd)

    def f(x):
        a, b = fn.apply(x)
        return b * 2 + a

    x = jnp.array([1.0, 2.0])
    (gx,) = gradients_eagerly(f, x)
    check("C23", gx=gx, **seen)
    check("C23", gx=gradients(f, x)[0])
    assert is_zero(gradients(lambda x: fn.apply(x)[0], x))


def test_C25_input_marked_and_returned():
    """An input that is marked and returned carries no gradient as an output; the input itself still does."""
    check("C25", rg=False, x_rg=True)

    def fwd(ctx, x):
        ctx.mark_non_differentiable(x)
        return x

    fn = answering(lambda ctx, g: g, fwd)
    assert gradients(lambda x: fn.apply(x) + 3 * x, jnp.array([1.0])) == (3.0,)


def test_C26_mark_of_what_is_no_output():
    """Marking an array that is no output changes nothing."""
    check("C26", rg=True)
    fn = answering(lambda ctx, g: g, lambda ctx, x: ctx.mark_non_differentiable(x * 3) or x * 1)
    assert gradients(fn.apply, jnp.array([1.0])) == (1.0,)


def test_C27_second_mark():
    """A second call of mark_non_differentiable replaces the first."""
    check("C27", rg=[True, False])

    def mark(ctx, a, b):
        ctx.mark_non_differentiable(a)
        ctx.mark_non_differentiable(b)

    fn = two_outputs(mark, lambda ctx, ga, gb: ga + 100 * gb)
    assert gradients(lambda x: sum(fn.apply(x)), jnp.array([1.0])) == (1.0,)


def test_C28_materialised_gradients():
    """By default an unused output gives zeros of its shape and dtype, and what is not an array gives None."""
    seen = {}

    def bwd(ctx, a, b, s, i):
        seen.update(a=a, b=b, s=s, i=i)
        return a

    fn = answering(bwd, lambda ctx, x: (x * 2, x.sum().astype(jnp.float32), "s", jnp.argsort(x)))
    gradients_eagerly(lambda x: fn.apply(x)[0], jnp.array([1.0, 2.0]))
    check("C28", **seen)
    check("C28", a=gradients(lambda x: fn.apply(x)[0], jnp.array([1.0, 2.0]))[0])


@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_C29_no_materialised_gradients(run):
    """After `set_materialize_grads(False)` unused, integer and marked outputs give None."""
    seen = {}

    def fwd(ctx, x):
        ctx.set_materialize_grads(False)
        c = x * 3
        ctx.mark_non_differentiable(c)
        return x * 2, x * 5, jnp.argsort(x), c

    def bwd(ctx, a, b, i, c):
        seen.update(b=b, i=i, c=c)
        return a

    fn = answering(bwd, fwd)
    g = run(jax.grad(lambda x: fn.apply(x)[0].sum()))(jnp.array([1.0, 2.0]))
    check("C29", a=g, **seen)


def test_C33_names():
    """The class of ctx is `<Name>Backward`, and so is its name; decision 14: there is no graph to look at."""
    seen = {}

    class Seen(MulExp):
        @staticmethod
        def backward(ctx, g):
            seen.update(cls=type(ctx).__name__, name=ctx.name())
            assert isinstance(ctx, fnjax.FunctionCtx)
            for attribute in "next_functions", "metadata":
                with pytest.raises(AttributeError, match="there is no graph in JAX"):
                    getattr(ctx, attribute)
            return MulExp.backward(ctx, g)

    gradients(lambda x: Seen.apply(x, 2.0), jnp.array([1.0]))
    assert seen == {"cls": "SeenBackward", "name": "SeenBackward"}
    check("C33", cls=MulExp._ctx.__name__, name=MulExp._ctx.name())


def test_C34_mark_shared_storage():
    """`mark_shared_storage` does nothing and warns."""
    (warning,) = recorded("C34", "warnings")
    fn = answering(lambda ctx, g: g, lambda ctx, x: ctx.mark_shared_storage((x, x)) or x * 2)
    with pytest.warns(FutureWarning, match="`mark_shared_storage` is deprecated") as caught:
        check("C34", ok=fn.apply(jnp.array([1.0])))
    assert str(caught[0].message) in warning.removeprefix("FutureWarning: ")


def define(**flags):
    """Define a Function with class flags, and apply it."""
    body = {"forward": staticmethod(lambda ctx, x: x * x), "backward": staticmethod(lambda ctx, g: g)}
    return type("Fn", (fnjax.Function,), body | flags).apply(jnp.array([1.0]))


@pytest.mark.parametrize(
    ("flag", "value", "got"),
    [
        pytest.param("clear_saved_tensors_on_access", 1, "int", id="C40"),
        pytest.param("boxed_grads_call", "yes", "str", id="K10"),
    ],
)
def test_class_flags_are_bools(request, flag, value, got):
    """A class flag that is no bool is an error (here already when the class is defined)."""
    with refuses(recorded(request.node.callspec.id), f"{flag} must be a bool, got {got}", "Fn"):
        define(**{flag: value})


def test_C41_boxed_gradients():
    """With `boxed_grads_call` backward gets one list of gradients, which it may empty."""
    seen = {}

    class Fn(fnjax.Function):
        boxed_grads_call = True

        @staticmethod
        def forward(ctx, x):
            return x * 2, x * 3

        @staticmethod
        def backward(ctx, grads):
            seen.update(type=type(grads).__name__, n=len(grads))
            a, b = grads
            grads.clear()
            return 2 * a + 3 * b

    check("C41", gx=gradients(lambda x: sum(Fn.apply(x)), jnp.array([1.0]))[0], **seen)
