"""Gradients of extended dtypes and of JAX's own scalar types are those of jax.custom_vjp."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fnjax
from tests.wrappers import eager


class Metadata(fnjax.Function):
    """x, with 6 as the gradient of what is to be known of it: flax's way to hand out statistics of fp8."""

    @staticmethod
    def forward(ctx, x, meta):
        ctx.dtype = meta.dtype
        return x * 1

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output, jax.lax.convert_element_type(jnp.float32(6.0), ctx.dtype)


def by_hand():
    f = jax.custom_vjp(lambda x, meta: x * 1)
    f.defvjp(
        lambda x, meta: (x * 1, meta),
        lambda meta, g: (g, jax.lax.convert_element_type(jnp.float32(6.0), meta.dtype)),
    )
    return f


USES = {
    "once": lambda f: f,
    "twice": lambda f: lambda x, meta: f(x, meta) + f(2 * x, meta),
    "jit": jax.jit,
    "remat": jax.checkpoint,
    "scan": lambda f: lambda x, meta: jax.lax.scan(lambda c, _: (f(c, meta), None), x, length=2)[0],
    "vmap": lambda f: lambda x, meta: jax.vmap(f, (0, None))(x * jnp.ones(3), meta).sum(),
}


@pytest.mark.parametrize("use", USES)
def test_gradient_of_an_extended_dtype(use):
    """A gradient of an extended dtype is that of jax.custom_vjp, accumulated by the dtype's own rule."""
    dtype = pytest.importorskip("flax.linen.fp8_ops", reason="flax is not installed").fp32_max_grad

    def gradients(f, x, meta):
        meta = jax.lax.convert_element_type(meta, dtype)
        by_x, by_meta = jax.grad(USES[use](f), (0, 1), allow_int=True)(x, meta)
        return by_x, jax.lax.convert_element_type(by_meta, jnp.float32)

    args = jnp.float32(1.0), jnp.float32(2.0)
    got, expected = (jax.jit(gradients, static_argnums=0)(f, *args) for f in (Metadata.apply, by_hand()))
    assert got == expected
    assert got[1] == 6.0


class Square(fnjax.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**2

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        return 2 * x * grad_output


@pytest.mark.parametrize("wrap", [eager, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("number", [3.0, 3.0 + 1.0j], ids=["float", "complex"])
def test_numbers_of_jax_are_arrays(wrap, number):
    """stop_gradient, or the rule of a custom_jvp, turns a Python number into an array outside jit as well."""
    holomorphic = isinstance(number, complex)
    constant = lambda x: x * Square.apply(jax.lax.stop_gradient(x))
    np.testing.assert_allclose(wrap(jax.grad(constant, holomorphic=holomorphic))(number), number**2)
    ruled = jax.custom_jvp(lambda x: x**2)
    ruled.defjvp(lambda primals, tangents: (Square.apply(*primals), 2 * primals[0] * tangents[0]))
    np.testing.assert_allclose(wrap(jax.grad(ruled, holomorphic=holomorphic))(number), 2 * number)


class StrongRule(fnjax.Function):
    """x², with a backward and a jvp that compute with strong types."""

    @staticmethod
    def forward(ctx, x):
        ctx.x = jnp.float32(2) * x
        return x**2

    @staticmethod
    def backward(ctx, grad_output):
        return ctx.x * grad_output

    @staticmethod
    def jvp(ctx, tangent):
        return ctx.x * tangent


DERIVATIVES = {
    "grad": jax.grad,
    "jit": lambda f: jax.jit(jax.grad(f)),
    "of_jit": lambda f: jax.grad(jax.jit(f)),
    "remat": lambda f: jax.grad(jax.checkpoint(f)),
    "vmap": lambda f: jax.vmap(jax.grad(f), in_axes=None, axis_size=2, out_axes=None),
    "jvp": lambda f: lambda x: jax.jvp(f, (x,), (1.0,))[1],
    "second": lambda f: jax.grad(jax.grad(f)),
    "jit_second": lambda f: jax.jit(jax.grad(jax.grad(f))),
    "hessian": jax.hessian,
}


@pytest.mark.parametrize("name", DERIVATIVES)
@pytest.mark.parametrize("Fn", [Square, StrongRule])
def test_gradients_at_python_numbers_are_weak(Fn, name):
    """Derivatives at Python numbers have a weak type, as those of plain JAX, and do not widen what they meet."""
    derivative = DERIVATIVES[name]
    got, expected = derivative(Fn.apply)(3.0), derivative(lambda x: x**2)(3.0)
    assert got == expected
    assert (got.dtype, got.weak_type) == (expected.dtype, expected.weak_type) == (jnp.asarray(3.0).dtype, True)
    assert (got * jnp.bfloat16(1)).dtype == jnp.bfloat16


def test_gradients_at_arrays_are_strong():
    """A rule that computes with Python numbers alone gives an array's gradient the array's own type."""

    class Three(Square):
        @staticmethod
        def backward(ctx, grad_output):
            return jnp.asarray(3.0)

    assert not jax.grad(Three.apply)(jnp.float32(3)).weak_type
