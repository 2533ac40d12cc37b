"""A Function inside a Pallas kernel: compiled for a TPU as far as another machine can, and run in interpret mode."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import pallas as pl

import fnjax


class Tanh(fnjax.Function):
    """tanh, and a gradient of twice its size, so that it cannot be taken for JAX's own."""

    @staticmethod
    def forward(ctx, x):
        y = jnp.tanh(x)
        ctx.save_for_backward(y)
        ctx.save_for_forward(y)
        return y

    @staticmethod
    def backward(ctx, grad_output):
        (y,) = ctx.saved_tensors
        return Doubled.apply(grad_output) * (1 - y**2)

    @staticmethod
    def jvp(ctx, tangent):
        (y,) = ctx.saved_tensors
        return Doubled.apply(tangent) * (1 - y**2)


class Doubled(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        return x + x

    @staticmethod
    def backward(ctx, grad_output):
        return 2 * grad_output


class Once(Tanh):
    backward = staticmethod(fnjax.once_differentiable(Tanh.backward))


JITTED = jax.jit(Tanh.apply)  # traced outside of every kernel first
grad = lambda f: jax.grad(lambda x: f(x).sum())
tangent = lambda f: lambda x: jax.jvp(f, (x,), (jnp.ones_like(x),))[1]
SLOPE = lambda x: 2 * (1 - np.tanh(x) ** 2)

INSIDE = {  # what the kernel computes of a block, and the same in NumPy
    "call": (Tanh.apply, np.tanh),
    "jit": (lambda x: JITTED(x), np.tanh),  # noqa: PLW0108 - a function of its own
    "vmap": (jax.vmap(Tanh.apply), np.tanh),
    "loop": (lambda x: jax.lax.fori_loop(0, 2, lambda _, x: Tanh.apply(x), x), lambda x: np.tanh(np.tanh(x))),
    "cond": (lambda x: jax.lax.cond(x[0, 0] > 0, Tanh.apply, jnp.negative, x), np.tanh),
    "grad": (grad(Tanh.apply), SLOPE),
    "once_differentiable": (grad(Once.apply), SLOPE),
    "vmap of grad": (jax.vmap(grad(Tanh.apply)), SLOPE),
    "grad of grad": (grad(grad(Tanh.apply)), lambda x: -2 * np.tanh(x) * 2 * SLOPE(x)),
    "jvp": (tangent(Tanh.apply), SLOPE),
    "jvp of grad": (tangent(grad(Tanh.apply)), lambda x: -2 * np.tanh(x) * 2 * SLOPE(x)),
}
OUTSIDE = {  # what is done to the kernel that calls it
    "vmap of a kernel": (lambda f: lambda x: jax.vmap(f)(x[None])[0], np.tanh),
    "jvp of a kernel": (tangent, SLOPE),
}


def in_kernel(f, interpret):
    def kernel(x_ref, y_ref):
        y_ref[...] = f(x_ref[...])

    return lambda x: pl.pallas_call(kernel, jax.ShapeDtypeStruct(x.shape, x.dtype), interpret=interpret)(x)


@pytest.mark.parametrize(
    ("outside", "inside", "want"),
    [
        *(pytest.param(lambda f: f, inside, want, id=name) for name, (inside, want) in INSIDE.items()),
        *(pytest.param(outside, Tanh.apply, want, id=name) for name, (outside, want) in OUTSIDE.items()),
    ],
)
def test_in_a_kernel(outside, inside, want):
    """The kernel lowers for a TPU, and in interpret mode it gives what NumPy gives."""
    x = jnp.linspace(0.1, 1.0, 8 * 128, dtype=jnp.float32).reshape(8, 128)
    JITTED(x)
    lowered = jax.jit(outside(in_kernel(inside, False))).trace(x).lower(lowering_platforms=("tpu",))
    assert "tpu_custom_call" in lowered.as_text()
    np.testing.assert_allclose(outside(in_kernel(inside, True))(x), want(np.asarray(x)), rtol=1e-5, atol=1e-6)


def test_jit_keeps_its_fast_dispatch():
    """Outside of kernels no equation is opened: JAX 0.10 calls a jax.jit with one that is a hundred times slower."""

    class Effects(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            jax.debug.callback(lambda: None)
            return jax.lax.psum(Tanh.apply(x), "i")

        @staticmethod
        def backward(ctx, grad_output):
            return grad_output

    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    f = jax.shard_map(Effects.apply, mesh=mesh, in_specs=jax.P("i"), out_specs=jax.P())
    assert not jax.make_jaxpr(f)(jnp.ones(1)).jaxpr.is_high
    assert jax.make_jaxpr(in_kernel(Tanh.apply, False))(jnp.ones((8, 128))).jaxpr.is_high
