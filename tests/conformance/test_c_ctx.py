"""Section C, first part: saving on ctx, attributes, needs_input_grad."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax
from tests.conformance.support import (
    MulExp,
    answering,
    check,
    derivatives,
    gradients,
    gradients_eagerly,
    is_zero,
    recorded,
    refuses,
    same,
)

pytestmark = pytest.mark.usefixtures("x64")


def saving(save, bwd, fwd=lambda x: x * x):
    """A Function whose forward calls `save(ctx, x)` before it returns."""
    return answering(bwd, lambda ctx, x: save(ctx, x) or fwd(x))


def test_C01_none_keeps_its_place():
    """None may be saved, and comes back in its place."""

    def bwd(ctx, g):
        a, x, b = ctx.saved_tensors
        assert a is None
        assert b is None
        return 2 * x * g

    fn = saving(lambda ctx, x: ctx.save_for_backward(None, x, None), bwd)
    check("C01", gx=gradients(fn.apply, jnp.array([3.0]))[0])


@pytest.mark.parametrize(
    ("save", "path", "phrase"),
    [
        pytest.param(lambda ctx, x: ctx.save_for_backward(x, 3), ("grad",), "argument 1 is of type int", id="C02"),
        pytest.param(lambda ctx, x: ctx.save_for_backward([x, x]), (), "argument 0 is of type list", id="C04"),
    ],
)
@pytest.mark.parametrize("run", [lambda f: f, gradients], ids=["eager", "grad"])
def test_save_for_backward_takes_arrays(request, save, path, phrase, run):
    """Saving what is not an array is a TypeError; decision 3 has no exception for a call that nobody differentiates."""
    error = recorded(request.node.callspec.id.split("-")[-1], *path)
    with refuses(error, f"save_for_backward can only save variables, but {phrase}", "Fn"):
        fn = saving(save, lambda ctx, g: g)
        fn.apply(jnp.array([1.0])) if run is not gradients else run(fn.apply, jnp.array([1.0]))


def test_C03_second_call_of_save_for_backward():
    """A second call of save_for_backward replaces the first."""
    seen = {}

    def save(ctx, x):
        ctx.save_for_backward(x)
        ctx.save_for_backward(x * 10, x * 20)

    def bwd(ctx, g):
        seen["n"] = len(ctx.saved_tensors)
        return g * sum(ctx.saved_tensors)

    check("C03", gx=gradients(saving(save, bwd).apply, jnp.array([3.0]))[0], **seen)


def test_C05_saved_input():
    """A saved input comes back with its value; as the input it also has a derivative (decision 4)."""
    assert recorded("C05", "rg") is True
    fn = saving(lambda ctx, x: ctx.save_for_backward(x), lambda ctx, g: g * ctx.saved_tensors[0])
    assert derivatives(fn.apply, jnp.array([3.0])) == [3.0, 1.0]


def test_C06_saved_output():
    """A saved output comes back with its value; its derivative is that of the Function (decision 4)."""
    seen = []

    class Seen(MulExp):
        @staticmethod
        def backward(ctx, g):
            seen.extend(ctx.saved_tensors)
            return MulExp.backward(ctx, g)

    f = lambda x: Seen.apply(x, 1.0)
    gradients_eagerly(f, jnp.array([3.0]))
    check("C06", val=seen[0], same_fn=True)
    same(derivatives(f, jnp.array([3.0]))[1], recorded("C06", "val"))


def test_C07_saved_intermediate():
    """Decision 4: a saved intermediate has its own derivative, where PyTorch takes it for a constant."""
    assert recorded("C07", "rg") is False
    fn = saving(lambda ctx, x: ctx.save_for_backward(x * 3), lambda ctx, g: g * ctx.saved_tensors[0])
    assert derivatives(fn.apply, jnp.array([3.0])) == [9.0, 3.0]


def test_C08_saved_tensors_in_forward():
    """In forward `ctx.saved_tensors` is empty, and `ctx.to_save` has what was saved."""
    seen = {}

    def save(ctx, x):
        ctx.save_for_backward(x)
        seen.update(in_fwd={"ok": list(ctx.saved_tensors)}, to_save=len(ctx.to_save))

    saving(save, lambda ctx, g: g).apply(jnp.array([3.0]))
    check("C08", **seen)


def test_C09_saved_variables():
    """The older name `saved_variables` works and warns."""
    seen = []
    fn = saving(lambda ctx, x: ctx.save_for_backward(x), lambda ctx, g: seen.append(len(ctx.saved_variables)) or g)
    (warning,) = recorded("C09", "warnings")
    with pytest.warns(DeprecationWarning, match=warning.removeprefix("DeprecationWarning: ")):
        gradients_eagerly(fn.apply, jnp.array([3.0]))
    assert seen == [recorded("C09", "ok")]


def test_C10_attributes():
    """Any attribute of ctx reaches backward as the very object; a missing one is an AttributeError."""
    values, seen = [1, 2], {}

    def save(ctx, x):
        ctx.k, ctx.lst, ctx.mod = 3, values, np

    def bwd(ctx, g):
        seen.update(k=ctx.k, lst=ctx.lst)
        assert ctx.lst is values
        assert ctx.mod is np
        with refuses(recorded("C10", "missing"), "'FnBackward' object has no attribute 'nope'", "Fn"):
            _ = ctx.nope
        return g * ctx.k

    gradients(saving(save, bwd).apply, jnp.array([3.0]))
    check("C10", **seen)


def test_C12_needs_input_grad_of_each_kind():
    """Of a differentiated array, another array, integers, a number, None and a list only the first needs a gradient."""
    seen = {}

    class Fn(fnjax.Function):
        @staticmethod
        def forward(ctx, *a):
            seen["fwd"] = ctx.needs_input_grad
            return a[0] * 1

        @staticmethod
        def backward(ctx, g):
            seen["bwd"] = ctx.needs_input_grad
            return (g,) + (None,) * 5

    one = jnp.array([1.0])
    gradients(lambda x: Fn.apply(x, one, jnp.array([1]), 3.0, None, [one]), one)
    check("C12", **seen)


def test_C13_needs_input_grad_of_a_plain_call():
    """Decision 6: in a call that nobody differentiates all is False (PyTorch under no_grad: requires_grad)."""
    assert recorded("C13", "nig") == [True]
    seen = []
    fn = saving(lambda ctx, x: seen.append(tuple(ctx.needs_input_grad)), lambda ctx, g: g)
    fn.apply(jnp.array([1.0]))
    jax.jit(fn.apply)(jnp.array([1.0]))
    assert set(seen) == {(False,)}


@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_C14_needs_input_grad_is_what_is_asked_for(run):
    """Decision 6: in backward it tells which gradients are wanted (PyTorch: which inputs require any)."""
    assert recorded("C14", "leaf_other_not_asked") == [True, True]
    seen = {}

    class Fn(fnjax.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx, g):
            seen["nig"] = ctx.needs_input_grad
            x, y = ctx.saved_tensors
            return g * y, g * x

    x, y = jnp.array([2.0]), jnp.array([3.0])
    check("C14", g=jax.grad(lambda x: run(Fn.apply)(x, y).sum())(x))
    assert seen["nig"] == (True, False)
    assert jax.grad(lambda y: run(Fn.apply)(x, y).sum())(y) == 2.0
    assert seen["nig"] == (False, True)


def test_C15_needs_input_grad_is_writable():
    """`needs_input_grad` may be assigned, in forward for backward too."""
    seen = []

    def save(ctx, x):
        ctx.needs_input_grad = (False, False)

    fn = saving(save, lambda ctx, g: seen.append(list(ctx.needs_input_grad)) or g)
    assert gradients(fn.apply, jnp.array([1.0])) == (1.0,)
    assert seen[0] == recorded("C15", "ok")


def test_C30_backward_without_any_gradient():
    """JAX does not run backward where no output has a gradient (PyTorch runs it with None)."""
    assert recorded("C30", "called") is True
    never = saving(lambda ctx, x: ctx.set_materialize_grads(False), lambda ctx, g: pytest.fail("backward was run"))
    assert is_zero(gradients(lambda x: jax.lax.stop_gradient(never.apply(x)) + 0 * x, jnp.array([1.0])))


def test_C35_C36_pullbacks_can_be_called_again():
    """Residuals are not freed: a pullback may be called any number of times."""
    assert recorded("C35", "again", "exc") == "RuntimeError"
    assert recorded("C36", "again") == {"ok": None}
    _, pullback = jax.vjp(lambda x: MulExp.apply(x, 2.0), jnp.array([1.0]))
    first, again = pullback(jnp.ones(1)), pullback(jnp.ones(1))
    assert first == again


def test_C37_attribute_that_is_an_input():
    """An input kept as an attribute has its derivative, as a saved one has."""

    def fwd(ctx, x):
        ctx.x = x
        return x * x

    fn = answering(lambda ctx, g: 2 * ctx.x * g, fwd)
    same(derivatives(fn.apply, jnp.array([3.0]))[1], recorded("C37", "gg", "ok"))


def test_C38_attribute_that_is_an_output():
    """An output kept as an attribute has its derivative, as a saved one has."""

    def fwd(ctx, x):
        ctx.y = jnp.exp(x)
        return ctx.y

    fn = answering(lambda ctx, g: ctx.y * g, fwd)
    same(derivatives(fn.apply, jnp.array([1.0])), [recorded("C38", "g"), recorded("C38", "gg", "ok")])


def test_C39_clear_saved_tensors_on_access():
    """With `clear_saved_tensors_on_access` a second look at the saved tensors is an error."""

    class Fn(fnjax.Function):
        clear_saved_tensors_on_access = True

        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return x * x

        @staticmethod
        def backward(ctx, g):
            (x,) = ctx.saved_tensors
            phrase = "saved_tensors can only be accessed once when clear_saved_tensors_on_access=True is set on the"
            with refuses(recorded("C39", "second"), phrase, "Fn"):
                _ = ctx.saved_tensors
            return 2 * x * g

    check("C39", gx=gradients(Fn.apply, jnp.array([3.0]))[0])


def test_C42_save_for_backward_after_forward():
    """Outside forward save_for_backward has no effect."""
    seen = []

    class Late(MulExp):
        @staticmethod
        def backward(ctx, g):
            ctx.save_for_backward(jnp.array([5.0]))
            seen.extend(ctx.saved_tensors)
            return MulExp.backward(ctx, g)

    _, pullback = jax.vjp(lambda x: Late.apply(x, 2.0), jnp.array([1.0]))
    pullback(jnp.ones(1))
    pullback(jnp.ones(1))
    same(seen, [recorded("C42", "still")] * 2)
