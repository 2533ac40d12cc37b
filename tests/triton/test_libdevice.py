"""libdevice by its names: integers and bits, conversions, rounding modes and functions of floats, next to Python's."""

import math
import statistics
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from fnjax.triton.language import _libdevice
from fnjax.triton.language.extra import libdevice
from fnjax.triton.values import rounding, types
from fnjax.triton.values.affine import leading
from fnjax.triton.values.tensor import Tensor

F = np.array([-2.5, -1.0, -0.3, 0.0, 0.25, 0.5, 1.5, 2.5, 3.75], np.float32)
P = np.array([0.01, 0.3, 0.5, 0.9, 1.5, 4.9, 5.1, 7.0, 30.0], np.float32)
U = np.array([0.001, 0.1, 0.25, 0.5, 0.75, 0.9, 0.99], np.float32)
I = np.array([0, 1, -1, 5, -7, 123456789, -2147483648, 2147483647], np.int32)  # noqa: E741 - integers
J = np.array([3, -2, -1, 7, 7, -987654321, 2147483647, 2147483647], np.int32)
W, V = I.astype(object), J.astype(object)  # integers of any size


def low(values):
    """Return the lower 32 bits of integers, signed."""
    return np.array([(int(v) + 2**31) % 2**32 - 2**31 for v in values], np.int32)


def unsigned(values):
    return [int(v) % 2**32 for v in values]


def each(function, *arrays):
    return np.array([function(*map(float, row)) for row in zip(*arrays, strict=True)])


CASES = {  # arguments, and what Python, NumPy or a closed form says
    "mulhi": ((I, J), [int(a) * int(b) >> 32 for a, b in zip(W, V, strict=True)]),
    "mul24": ((I, J), low(low(W * 256) // 256 * (low(V * 256) // 256).astype(object))),
    "hadd": ((I, J), (W + V) // 2),
    "rhadd": ((I, J), (W + V + 1) // 2),
    "sad": ((I, J, np.full(8, 5, np.uint32)), low(abs(W - V) + 5)),
    "brev": ((I,), low([int(f"{v:032b}"[::-1], 2) for v in unsigned(I)])),
    "byte_perm": ((I, J, np.full(8, 0x4162, np.int32)), low([
        (b & 255) << 24 | (a >> 8 & 255) << 16 | (b >> 16 & 255) << 8 | (a >> 16 & 255)
        for a, b in zip(unsigned(I), unsigned(J), strict=True)
    ])),
    "float_as_int": ((F,), F.view(np.int32)),
    "float_as_uint": ((F,), F.view(np.int32)),
    "int_as_float": ((F.view(np.int32),), F),
    "uint_as_float": ((F.view(np.uint32),), F),
    "float2int_rd": ((F,), np.floor(F)),
    "float2uint_rz": ((P,), np.trunc(P)),
    "float2ll_rn": ((F,), np.rint(F)),
    "double2ull_ru": ((P,), np.ceil(P)),
    "int2float_rn": ((I,), I.astype(np.float32)),
    "ull2double_rn": ((np.arange(3, dtype=np.uint32),), [0.0, 1.0, 2.0]),
    "llrint": ((F,), np.rint(F)),
    "llround": ((F,), each(lambda x: math.copysign(math.floor(abs(x) + 0.5), x), F)),
    "fast_dividef": ((F, F + 3), F / (F + 3)),
    "fast_powf": ((P, F), P.astype(float) ** F),
    "fma_rn": ((F, F, F), F * F + F),
    "saturatef": ((F,), np.clip(F, 0, 1)),
    "rsqrt_rn": ((P,), 1 / np.sqrt(P)),
    "sinpi": ((F,), np.sin(np.pi * F.astype(float))),
    "cospi": ((F,), np.cos(np.pi * F.astype(float))),
    "rhypot": ((P, F), 1 / np.hypot(P, F)),
    "norm3d": ((P, F, P), np.sqrt(2 * P**2 + F**2)),
    "rnorm3d": ((P, F, P), 1 / np.sqrt(2 * P**2 + F**2)),
    "norm4d": ((P, F, P, F), np.sqrt(2 * P**2 + 2 * F**2)),
    "rnorm4d": ((P, F, P, F), 1 / np.sqrt(2 * P**2 + 2 * F**2)),
    "rcbrt": ((P,), P.astype(float) ** (-1 / 3)),
    "tgamma": ((P[:-1],), each(math.gamma, P[:-1])),  # as exp(lgamma), which is less exact where it is large
    "erfcx": ((P[:-1],), each(lambda x: math.exp(x * x) * math.erfc(x), P[:-1])),
    "erfcinv": ((U,), each(lambda u: -statistics.NormalDist().inv_cdf(u / 2) / math.sqrt(2), U)),
    "normcdfinv": ((U,), each(statistics.NormalDist().inv_cdf, U)),
    "cyl_bessel_i0": ((F,), np.i0(F)),
    "cyl_bessel_i1": ((F,), (np.i0(F.astype(float) + 1e-5) - np.i0(F.astype(float) - 1e-5)) / 2e-5),
    "ldexp": ((F, np.arange(9, dtype=np.int32)), F * 2.0 ** np.arange(9)),
    "scalbn": ((F, np.arange(9, dtype=np.int32)), F * 2.0 ** np.arange(9)),
    "remainder": ((P * 7, P + 1), each(math.remainder, P * 7, P + 1)),
    "ilogb": ((P,), np.floor(np.log2(P))),
    "logb": ((P,), np.floor(np.log2(P))),
}  # fmt: skip


def call(name, arrays):
    """Return what a function of libdevice gives for arrays."""
    tensors = [Tensor(a.reshape((1,) * leading() + a.shape), types.type_of_array(a.dtype), a.shape) for a in arrays]
    found = getattr(libdevice, name)(*tensors)
    return found.dtype, np.asarray(found.array()).reshape(found.shape)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("name", CASES)
def test_a_function_by_its_name(name):
    """The numbers are those of Python or NumPy, in the type that Triton declares."""
    arrays, wanted = CASES[name]
    kind, found = call(name, arrays)
    wanted = np.asarray(wanted, float)
    if kind.is_int():
        np.testing.assert_array_equal(found, wanted)
        assert kind.is_int_signed()
    else:
        np.testing.assert_allclose(found, wanted, rtol=3e-6, atol=2e-7)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_powers_of_two_are_exact(dtype):
    """2**n is a power of two, its logarithm n, with their derivatives; ilogb knows NaN and subnormal numbers."""
    info = jnp.finfo(dtype)
    n = jnp.arange(info.minexp, info.maxexp).astype(dtype)
    powers = jnp.asarray(np.exp2(np.asarray(n, np.float64)), dtype)
    for of in (lambda f: f, jax.jit):
        np.testing.assert_array_equal(of(rounding.exp2)(n), powers)
        np.testing.assert_array_equal(of(rounding.log2)(powers), n)
    x = jnp.asarray([0.3, 1.0, 2.5, 8.0, jnp.inf], dtype)
    (_, power_slope), (_, log_slope) = (jax.jvp(f, (x,), (jnp.ones_like(x),)) for f in (rounding.exp2, rounding.log2))
    wide = np.asarray(x, np.float64)
    np.testing.assert_allclose(np.asarray(power_slope, float), np.log(2) * 2**wide, rtol=4 * float(info.eps))
    np.testing.assert_allclose(np.asarray(log_slope, float), 1 / (wide * np.log(2)), rtol=4 * float(info.eps))
    for f, wanted in ((rounding.exp2, np.exp2), (rounding.log2, np.log2)):
        edges = np.asarray([0.0, -0.0, np.inf, -np.inf, np.nan, 1.0, -1.0, 200.0, -200.0, 0.7])
        with np.errstate(all="ignore"):
            expected = jnp.asarray(wanted(edges), dtype)
        np.testing.assert_allclose(
            *(np.asarray(v, float) for v in (f(jnp.asarray(edges, dtype)), expected)), rtol=2 * float(info.eps)
        )
    tiny = np.float32([0, np.nan, np.inf, -np.inf, 1e-40, 1e-45, -3, 2.0**-126])
    limits = np.iinfo(np.int32)
    wanted = [limits.min, limits.min, limits.max, limits.max, -133, -149, 1, -126]
    np.testing.assert_array_equal(call("ilogb", [tiny])[1], wanted)
    np.testing.assert_array_equal(call("logb", [tiny])[1], [-np.inf, np.nan, np.inf, np.inf, *wanted[4:]])


@pytest.mark.parametrize(("name", "mode"), [("add_rz", "toward zero"), ("fma_ru", "up"), ("sqrt_rd", "down")])
def test_other_rounding_modes_round_to_nearest(name, mode):
    """They are computed as round-to-nearest, and a warning says so."""
    _libdevice.find.cache_clear()
    count = {"add": 2, "fma": 3, "sqrt": 1}[name[:-3]]
    wanted = {"add": P + P, "fma": P * P + P, "sqrt": np.sqrt(P)}[name[:-3]]
    with pytest.warns(UserWarning, match=f"{name}: fnjax.triton rounds to the nearest number, not {mode}"):
        found = call(name, [P] * count)[1]
    np.testing.assert_allclose(found, wanted, rtol=1e-6)


def test_bits_of_float64():
    """They need JAX's 64-bit numbers, and are refused without."""
    x = np.array([1.5, -2.25e10, 1e-300])
    if not jax.config.jax_enable_x64:
        with pytest.raises(TypeError, match=r"libdevice.double2hiint takes 64 bits, which JAX leaves off"):
            call("double2hiint", [x])
        return
    bits = x.view(np.int64)
    np.testing.assert_array_equal(call("double2hiint", [x])[1], bits >> 32)
    np.testing.assert_array_equal(call("double2loint", [x])[1], low(bits))
    parts = [(bits >> 32).astype(np.int32), low(bits)]
    np.testing.assert_array_equal(call("hiloint2double", parts)[1], x)


def test_names_that_are_there():
    """Of the names of Triton 3.5's libdevice all but these, and these are refused when they are used."""
    names = (Path(__file__).parent / "libdevice.txt").read_text().split()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        absent = [name for name in names if not hasattr(libdevice, name)]
    assert absent == ["rcp64h", "j0", "j1", "y0", "y1", "yn", "jn"]
