"""Saved values are told apart as inputs, outputs and intermediates, and second derivatives are right for each."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax
from tests.wrappers import eager, once_in_scan, vmapped


class Identity(fnjax.Function):
    """x, with a rule that tells the input from the output."""

    @staticmethod
    def forward(x):
        return x

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(inputs[0], output)

    @staticmethod
    def backward(ctx, grad_output):
        i, o = ctx.saved_tensors
        return grad_output * (2 * o + 3 * i)


class IdentityWithVmap(Identity):
    @staticmethod
    def vmap(info, in_dims, x):
        return IdentityWithVmap.apply(x), in_dims[0]


WRAPPERS = {"eager": eager, "jit": jax.jit, "scan": once_in_scan, "remat": jax.checkpoint}


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
@pytest.mark.parametrize("Fn", [Identity, IdentityWithVmap])
def test_an_input_that_is_an_output_is_saved_as_both(Fn, wrap):
    """The rule is y' = 2 y + 3 x, so y'' = 2 y' + 3: 23 at 2, where y is 2 and y' is 10."""
    f = wrap(Fn.apply)
    assert jax.grad(f)(2.0) == 10.0
    assert jax.grad(jax.grad(f))(2.0) == 23.0
    assert jax.hessian(f)(2.0) == 23.0


class PrivateNames(fnjax.Function):
    """x², which keeps what it needs under names as a ctx itself might have."""

    @staticmethod
    def forward(ctx, x):
        ctx._inputs, ctx._saved, ctx._facts, ctx._needs = (x,), 2.0, "facts", None
        return x * x

    @staticmethod
    def backward(ctx, grad_output):
        assert (ctx._facts, ctx._needs) == ("facts", None)
        assert ctx.needs_input_grad == (True,)
        return grad_output * ctx._saved * ctx._inputs[0]


@pytest.mark.parametrize("wrap", WRAPPERS.values(), ids=WRAPPERS)
def test_private_names_on_ctx_are_the_user_s(wrap):
    """Attributes such as `ctx._inputs` reach backward: ctx uses none of these names itself."""
    assert wrap(jax.grad(PrivateNames.apply))(3.0) == 6.0


def test_telling_them_apart_leaves_no_operation():
    """The compiled gradient has no copy of an input that is an output, and outside jit it is the same buffer."""
    seen = []

    class Watched(Identity):
        @staticmethod
        def setup_context(ctx, inputs, output):
            seen.append((inputs[0], output))
            Identity.setup_context(ctx, inputs, output)

    x = jnp.ones(4)
    text = jax.jit(jax.grad(lambda x: Watched.apply(x).sum())).lower(x).as_text()
    assert "copy" not in text
    jax.grad(lambda x: Watched.apply(x).sum())(x)
    i, o = seen[-1]
    assert i is not o
    assert i.unsafe_buffer_pointer() == o.unsafe_buffer_pointer()


class Rule(fnjax.Function):
    """sin with a rule of its own on what was saved: the output, or the input."""

    @staticmethod
    def forward(ctx, x, which):
        y = jnp.sin(x)
        ctx.save_for_backward(y if which == "output" else x)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        return 3 * grad_output * jnp.cos(ctx.saved_tensors[0]), None


HOOKS = {
    "negated": (lambda x: -x, lambda kept: -kept),
    "bits": (
        lambda x: jax.lax.bitcast_convert_type(x, jnp.int32),
        lambda kept: jax.lax.bitcast_convert_type(kept, jnp.float32),
    ),
    "in a container": (lambda x: {"half": x / 2, "name": "x"}, lambda kept: kept["half"] * 2),
}


@pytest.mark.sampled(7)
@pytest.mark.parametrize("wrap", [*WRAPPERS.values(), vmapped], ids=[*WRAPPERS, "vmap"])
@pytest.mark.parametrize("which", ["output", "input"])
@pytest.mark.parametrize("hooks", HOOKS)
def test_hooks_that_compute(hooks, which, wrap):
    """Without loss they change no derivative: what is unpacked counts as the array that was saved, as in PyTorch."""

    def hooked(x):
        with fnjax.saved_tensors_hooks(*HOOKS[hooks]):
            return Rule.apply(x, which)

    x = jnp.array([0.7, 0.2], jnp.float32)
    loss = lambda f: lambda x: (wrap(f)(x) ** 2).sum()
    for second in (jax.hessian, lambda f: jax.jacrev(jax.grad(f))):
        expected = second(loss(lambda x: Rule.apply(x, which)))(x)
        np.testing.assert_allclose(jax.jit(second(loss(hooked)))(x), expected, rtol=1e-5)


def test_hooks_around_a_saved_output_by_hand():
    """Y = sin x, y' = 3 cos y: the second derivative is -9 sin(y) cos(y), with hooks or without."""

    def hooked(x):
        with fnjax.saved_tensors_hooks(*HOOKS["negated"]):
            return Rule.apply(x, "output")

    y = np.sin(0.7)
    np.testing.assert_allclose(jax.grad(jax.grad(hooked))(0.7), -9 * np.sin(y) * np.cos(y), rtol=1e-5)


def test_unpacking_another_array_is_an_error():
    """An unpacked array must have the shape and dtype of the saved one."""
    with fnjax.saved_tensors_hooks(lambda x: x, lambda kept: kept[:1]):
        _, pullback = jax.vjp(jax.jit(lambda x: Rule.apply(x, "input")), jnp.ones(2, jnp.float32))
        with pytest.raises(fnjax.errors.ArgumentError, match=r"(?s)cannot stand for.*float32\[2\].*float32\[1\]"):
            pullback(jnp.ones(2, jnp.float32))
