"""What is saved, and what a second derivative makes of it."""

import jax
import jax.numpy as jnp
import pytest

import fnjax
from tests.wrappers import eager, once_in_scan


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
