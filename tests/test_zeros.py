"""Zeros that stand for the gradient of an unused output, or for a missing tangent: of the type that JAX expects."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

import fnjax
from tests.wrappers import eager

pytestmark = pytest.mark.skipif(jax.device_count() < 4, reason="needs four devices (tests/conftest.py forces them)")


def sharded(f):
    mesh = jax.make_mesh((4,), ("i",), axis_types=(AxisType.Auto,))
    return jax.jit(jax.shard_map(f, mesh=mesh, in_specs=P("i"), out_specs=P("i")))


def explicit(f, wrap):
    def run(x):
        with jax.set_mesh(jax.make_mesh((4,), ("i",), axis_types=(AxisType.Explicit,))):
            return wrap(f)(jax.device_put(x, P("i")))

    return run


MESHES = {
    "none": eager,
    "shard_map": sharded,
    "explicit": functools.partial(explicit, wrap=eager),
    "explicit jit": functools.partial(explicit, wrap=jax.jit),
}
# Two uses in which the type of the zeros counts: JAX compares it with that of what they meet.
USES = {
    "carry": lambda zeros, x: jax.lax.scan(lambda c, _: (c + jnp.sin(x), None), zeros, None, length=2)[0],
    "pullback": lambda zeros, x: jnp.cos(x) + jax.vjp(jnp.sin, x)[1](zeros)[0],
    "branch": lambda zeros, x: jax.lax.cond(True, lambda: zeros + x, lambda: zeros),
}


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("use", USES)
def test_the_gradient_of_an_unused_output(use, mesh):
    """Backward may use it as jax.custom_vjp's backward may."""
    backward = lambda x, g, unused: g * jnp.cos(x) + USES[use](unused, x)

    class Both(fnjax.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return jnp.sin(x), jnp.cos(x)

        @staticmethod
        def backward(ctx, *grads):
            return backward(*ctx.saved_tensors, *grads)

    twin = jax.custom_vjp(lambda x: (jnp.sin(x), jnp.cos(x)))
    twin.defvjp(lambda x: ((jnp.sin(x), jnp.cos(x)), x), lambda x, grads: (backward(x, *grads),))
    x = jnp.arange(4.0)
    of = lambda f: MESHES[mesh](lambda x: jax.vjp(lambda x: f(x)[0], x)[1](x)[0])(x)
    np.testing.assert_allclose(of(Both.apply), of(twin), rtol=1e-6)


@pytest.mark.parametrize("mesh", MESHES)
@pytest.mark.parametrize("use", USES)
def test_a_missing_tangent(use, mesh):
    """So may jvp use the zeros of an argument that does not move."""

    class Product(fnjax.Function):
        @staticmethod
        def forward(ctx, x, y):
            ctx.save_for_forward(x, y)
            return x * y

        @staticmethod
        def jvp(ctx, x_t, y_t):
            x, y = ctx.saved_tensors
            return x_t * y + USES[use](y_t, x)

    x = jnp.arange(4.0)
    got = MESHES[mesh](lambda x: jax.jvp(lambda x: Product.apply(x, jax.lax.stop_gradient(x)), (x,), (x,))[1])(x)
    np.testing.assert_allclose(got, x * x + USES[use](jnp.zeros(4), x), rtol=1e-6)
