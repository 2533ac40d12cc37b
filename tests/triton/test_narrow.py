"""bfloat16, float8 and libdevice, which Triton's interpreter has wrong or not at all, beside float32 references."""

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest

from tests.triton.case import floats
from tests.triton.kernels import narrow

KERNELS = (
    "scale_kernel",
    "rms_kernel",
    "dot_kernel",
    "cast_kernel",
    "eight_bits_kernel",
    "libdevice_kernel",
)
BF16 = ml_dtypes.bfloat16
both_ways = pytest.mark.parametrize("compiled", [lambda f: f, jax.jit], ids=["eager", "jit"])


@both_ways
def test_products_of_bfloat16_are_rounded_once(compiled):
    """The product of two bfloat16 numbers is exact in float32, and then rounded to the nearest."""
    x, y = floats(1, 100).astype(BF16), floats(2, 100).astype(BF16)
    found = compiled(lambda x, y: narrow.scale_kernel[(4,)](x, y, jnp.zeros(100, BF16), 100, BLOCK=32))(x, y)
    assert found.dtype == BF16
    np.testing.assert_array_equal(np.asarray(found), (x.astype(np.float32) * y.astype(np.float32)).astype(BF16))


@both_ways
def test_float32_inside_bfloat16_outside(compiled):
    """A norm counted in float32 is rounded when it is stored: within half a step of bfloat16."""
    x, w = floats(3, 5, 50).astype(BF16), floats(4, 50).astype(BF16)
    launch = compiled(lambda x, w: narrow.rms_kernel[(5,)](x, w, jnp.zeros((5, 50), BF16), 50, 1e-6, BLOCK=64))
    wide = x.astype(np.float64)
    wide = wide / np.sqrt((wide**2).mean(1, keepdims=True) + 1e-6) * w.astype(np.float64)
    np.testing.assert_allclose(np.asarray(launch(x, w), np.float64), wide, rtol=2**-8)


@both_ways
def test_dot_of_bfloat16_adds_in_float32(compiled):
    """Each product is exact in float32; only the sum rounds."""
    a, b = floats(5, 16, 64).astype(BF16), floats(6, 64, 16).astype(BF16)
    launch = compiled(lambda a, b: narrow.dot_kernel[(1,)](a, b, jnp.zeros((16, 16), jnp.float32), M=16, N=16, K=64))
    wide = a.astype(np.float64) @ b.astype(np.float64)
    np.testing.assert_allclose(np.asarray(launch(a, b)), wide, rtol=0, atol=1e-6 * np.abs(wide).max())


def test_dot_of_ones_in_bfloat16_is_their_number():
    """The interpreter gives 4228120576 here."""
    ones = jnp.ones((16, 16), BF16)
    found = narrow.dot_kernel[(1,)](ones, ones, jnp.zeros((16, 16), jnp.float32), M=16, N=16, K=16)
    np.testing.assert_array_equal(np.asarray(found), 16)


@pytest.mark.parametrize(
    ("source", "target"), [(np.float32, BF16), (BF16, np.float32), (np.float16, BF16), (BF16, np.int32)]
)
def test_casts_of_bfloat16(source, target):
    """To the nearest, ties to even; to whole numbers toward zero."""
    x = (floats(7, 200, low=-60, high=60) / 3).astype(source)
    found = jax.jit(lambda x: narrow.cast_kernel[(4,)](x, jnp.zeros(200, target), 200, BLOCK=64))(x)
    np.testing.assert_array_equal(np.asarray(found), x.astype(np.float32).astype(target))


def test_float8_keeps_three_or_two_bits():
    """float8e4nv is float8_e4m3fn, float8e5 is float8_e5m2: to the nearest, ties to even."""
    x = floats(8, 100, low=-20, high=20)
    found = jax.jit(lambda x: narrow.eight_bits_kernel[(1,)](x, jnp.zeros((2, 100), jnp.float32), 100, BLOCK=128))(x)
    wanted = [x.astype(kind).astype(np.float32) for kind in (ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2)]
    np.testing.assert_array_equal(np.asarray(found), wanted)


def test_libdevice():
    """tanh, rint, erf, log1p and div_rn by their mathematics."""
    import math

    x = floats(9, 64)
    found = jax.jit(lambda x: narrow.libdevice_kernel[(1,)](x, jnp.zeros((5, 64), jnp.float32), N=64))(x)
    erf = np.array([math.erf(value) for value in x])
    wanted = [np.tanh(x), np.rint(x * 4), erf, np.log1p(abs(x)), x / (x + 3)]
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=0, atol=2e-6)
