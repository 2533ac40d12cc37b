"""Prints and callbacks in jvp, and in backward where forward mode transposes it."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import fnjax
from fnjax.errors import GradientError

X = jnp.float32(0.5)
SLOPE, CURVE = 10 * np.cos(0.5), -10 * np.sin(0.5)
LOG = []


def note(x):
    LOG.append(float(x))


EFFECTS = {
    "debug": lambda x, ordered: jax.debug.callback(note, x, ordered=ordered),
    "io": lambda x, ordered: io_callback(note, None, x, ordered=ordered),
}


def functions(effect, *, ordered):
    class WithJvp(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_forward(x)
            return jnp.sin(x)

        @staticmethod
        def jvp(ctx, dx):
            (x,) = ctx.saved_tensors
            EFFECTS[effect](x, ordered)
            return 10 * dx * jnp.cos(x)

    class WithBackward(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return jnp.sin(x)

        @staticmethod
        def backward(ctx, grad):
            (x,) = ctx.saved_tensors
            EFFECTS[effect](x, ordered)
            return 10 * grad * jnp.cos(x)

    return WithJvp, WithBackward


def tangent(f):
    return lambda x: jax.jvp(f, (x,), (jnp.ones_like(x),))[1]


FORWARD = {
    "jit": lambda f: jax.jit(tangent(f)),
    "of_jit": lambda f: tangent(jax.jit(f)),
    "scan": lambda f: lambda x: jax.lax.scan(lambda _, x: (0, tangent(f)(x)), 0, x[None])[1][0],
    "scan_inside": lambda f: tangent(lambda x: jax.lax.scan(lambda c, _: (f(c), None), x, length=1)[0]),
    "while_loop": lambda f: jax.jit(
        lambda x: jax.lax.while_loop(lambda s: s[1] < 1, lambda s: (tangent(f)(s[0]), s[1] + 1), (x, 0))[0]
    ),
    "cond": lambda f: jax.jit(lambda x: jax.lax.cond(x > 0, tangent(f), lambda x: x, x)),
    "remat": lambda f: jax.jit(tangent(jax.checkpoint(f))),
}


@pytest.mark.parametrize("wrap", FORWARD.values(), ids=FORWARD)
@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("which", [0, 1], ids=["jvp", "backward"])
def test_ordered_in_compiled_forward_mode(which, effect, wrap):
    """It is refused, by the name of the class and with the remedy."""
    Fn = functions(effect, ordered=True)[which]
    with pytest.raises(GradientError, match=f"{Fn.__name__} has an ordered effect") as caught:
        jax.block_until_ready(wrap(Fn.apply)(X))
    assert "ordered=False" in str(caught.value)


@pytest.mark.parametrize("wrap", FORWARD.values(), ids=FORWARD)
@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("which", [0, 1], ids=["jvp", "backward"])
def test_unordered_in_compiled_forward_mode(which, effect, wrap):
    """It happens once, and the tangent is right."""
    Fn = functions(effect, ordered=False)[which]
    LOG.clear()
    np.testing.assert_allclose(wrap(Fn.apply)(X), SLOPE, rtol=1e-6)
    jax.effects_barrier()
    assert LOG == [0.5]


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("which", [0, 1], ids=["jvp", "backward"])
def test_ordered_outside_jit(which, effect):
    """It happens once in forward mode."""
    Fn = functions(effect, ordered=True)[which]
    LOG.clear()
    np.testing.assert_allclose(tangent(Fn.apply)(X), SLOPE, rtol=1e-6)
    jax.effects_barrier()
    assert LOG == [0.5]


@pytest.mark.parametrize("effect", EFFECTS)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit, jax.checkpoint], ids=["eager", "jit", "remat"])
def test_ordered_in_reverse_mode(wrap, effect):
    """It happens once in backward, in the order of the calls; a second derivative is right."""
    Fn = functions(effect, ordered=True)[1]
    LOG.clear()
    np.testing.assert_allclose(wrap(jax.grad(Fn.apply))(X), SLOPE, rtol=1e-6)
    jax.effects_barrier()
    assert LOG == [0.5]
    scanned = lambda x: jax.lax.scan(lambda c, _: (Fn.apply(c), None), x, length=2)[0]
    LOG.clear()
    jax.block_until_ready(wrap(jax.grad(scanned))(X))
    jax.effects_barrier()
    np.testing.assert_allclose(LOG, [np.sin(0.5), 0.5], rtol=1e-6)


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_second_order_in_reverse_mode(wrap, ordered):
    """A print in backward does not keep it from being differentiated."""
    Fn = functions("debug", ordered=ordered)[1]
    np.testing.assert_allclose(wrap(jax.grad(jax.grad(Fn.apply)))(X), CURVE, rtol=1e-6)
