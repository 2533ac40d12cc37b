"""Functions of floats by JAX's names: `tl.math`, `tl.extra.cuda.libdevice`, `triton.language.extra.libdevice`."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fnjax.triton import language as _language
from fnjax.triton.absent import refuse
from fnjax.triton.language import _libdevice_bits
from fnjax.triton.values import arithmetic as values
from fnjax.triton.values import rounding
from fnjax.triton.values.arithmetic import as_tensor
from fnjax.triton.values.tensor import Operand, Tensor, canonical
from fnjax.triton.values.types import dtype, float32, int1, int32, int64


def _sin_pi(x: jax.Array) -> jax.Array:
    """Return sin(πx) for x from -1 to 1, exact at multiples of 1/2."""
    near = jnp.where(jnp.abs(x) > 0.5, jnp.copysign(1 - jnp.abs(x), x), x)
    return jnp.sin(near * jnp.asarray(math.pi, x.dtype))


def _scaled_erfc(x: jax.Array) -> jax.Array:
    """Return exp(x²) erfc(x); above 5, where erfc vanishes, by its asymptotic series (DLMF 7.12.1)."""
    large = jnp.maximum(x, 5)
    term, series = jnp.ones_like(x), jnp.ones_like(x)
    for k in range(1, 9):
        term = term * -(2 * k - 1) / (2 * large * large)
        series = series + term
    small = jnp.minimum(x, 5)
    return jnp.where(
        x > 5, series / (large * math.sqrt(math.pi)), jnp.exp(small * small) * jax.scipy.special.erfc(small)
    )


def _ieee_remainder(x: jax.Array, y: jax.Array) -> jax.Array:
    """Return x - ny, where n is the integer nearest to x / y, of two equally near the even one."""
    size = jnp.abs(y)
    rest = lax.rem(jnp.abs(x), 2 * size)
    turns = jnp.where(rest <= size / 2, 0, jnp.where(rest >= 1.5 * size, 2, 1)).astype(x.dtype)
    return jnp.copysign(1, x) * (rest - turns * size)


def _is_zero(x: jax.Array) -> jax.Array:
    """Return True for zeros, not for the subnormal numbers that XLA takes for zeros."""
    limits = rounding.finfo(x.dtype)
    return jnp.less(rounding.exponent(x), limits.minexp - limits.nmant)


def _integer_logb(x: jax.Array) -> jax.Array:
    """Return the binary exponent; of infinity the largest integer, of zero and NaN the smallest, as in CUDA."""
    limits = np.iinfo(np.int32)
    special = jnp.where(jnp.isinf(x), limits.max, limits.min)
    return jnp.where(jnp.isfinite(x) & ~_is_zero(x), rounding.exponent(x), special)


_ONE = {
    "exp": jnp.exp, "exp2": rounding.exp2, "expm1": jnp.expm1, "log": jnp.log, "log2": rounding.log2,
    "log10": jnp.log10, "log1p": jnp.log1p, "sqrt": jnp.sqrt, "rsqrt": lax.rsqrt, "cbrt": jnp.cbrt,
    "sin": jnp.sin, "cos": jnp.cos,
    "tan": jnp.tan, "asin": jnp.arcsin, "acos": jnp.arccos, "atan": jnp.arctan, "sinh": jnp.sinh, "cosh": jnp.cosh,
    "tanh": jnp.tanh, "asinh": jnp.arcsinh, "acosh": jnp.arccosh, "atanh": jnp.arctanh, "erf": jax.scipy.special.erf,
    "erfc": jax.scipy.special.erfc, "erfinv": jax.scipy.special.erfinv, "lgamma": jax.scipy.special.gammaln,
    "floor": jnp.floor, "ceil": jnp.ceil, "trunc": jnp.trunc, "rint": jnp.rint, "nearbyint": jnp.rint,
    "sqrt_rn": jnp.sqrt, "rcp_rn": jnp.reciprocal, "exp10": lambda x: jnp.power(jnp.asarray(10, x.dtype), x),
    "normcdf": jax.scipy.stats.norm.cdf, "sigmoid": jax.nn.sigmoid,
    "round": lambda x: jnp.trunc(x + jnp.copysign(jnp.asarray(0.5, x.dtype), x)),
    "rcbrt": lambda x: 1 / jnp.cbrt(x), "rsqrt_rn": lax.rsqrt, "tgamma": jax.scipy.special.gamma,
    "cyl_bessel_i0": jax.scipy.special.i0, "cyl_bessel_i1": jax.scipy.special.i1,
    "normcdfinv": jax.scipy.special.ndtri, "erfcinv": lambda x: -jax.scipy.special.ndtri(x / 2) / math.sqrt(2),
    "saturatef": lambda x: jnp.where(x > 0, jnp.minimum(x, 1), 0).astype(x.dtype),
    "sinpi": lambda x: _sin_pi(x - 2 * jnp.rint(x / 2)),
    "cospi": lambda x: _sin_pi(0.5 - jnp.abs(x - 2 * jnp.rint(x / 2))), "erfcx": _scaled_erfc,
    "logb": lambda x: jnp.where(
        _is_zero(x), -jnp.inf, jnp.where(jnp.isfinite(x), rounding.exponent(x), jnp.abs(x))
    ).astype(x.dtype),
}  # fmt: skip
_FAST = {"fast_expf": "exp", "fast_exp10f": "exp10", "fast_logf": "log", "fast_log2f": "log2", "fast_log10f": "log10"}
_FAST |= {"fast_dividef": "div_rn", "fast_powf": "pow", "fma_rn": "fma", "scalbn": "ldexp"}
_FAST |= {"fast_sinf": "sin", "fast_cosf": "cos", "fast_tanf": "tan", "fast_tanhf": "tanh"}
_TWO: dict[str, Callable[..., jax.Array]] = {
    "pow": jnp.power,
    "atan2": jnp.arctan2,
    "fmod": lax.rem,
    "hypot": jnp.hypot,
    "copysign": jnp.copysign,
}
_TWO |= {"fmax": jnp.fmax, "fmin": jnp.fmin, "nextafter": jnp.nextafter}
_TWO |= {"fdim": lambda a, b: jnp.maximum(jnp.subtract(a, b), 0), "rhypot": lambda a, b: 1 / jnp.hypot(a, b)}
_TWO |= {"remainder": _ieee_remainder}
_TO_INTEGERS = {"llrint": ("rint", int64), "llround": ("round", int64)}
_NORMS = {"norm3d": 3, "norm4d": 4, "rnorm3d": 3, "rnorm4d": 4}
_SAME = ("abs", "fdiv", "div_rn", "fma", "umulhi", "cdiv", "max", "min")


def _floats(x: Operand) -> Tensor:
    x = as_tensor(x)
    return x if x.dtype.is_floating() else values.cast(x, float32)


def _one(function: Callable[[jax.Array], jax.Array]) -> Callable[..., Tensor]:
    """Return a language function of one float argument that applies a function of JAX."""
    return lambda x: values.unary(function, _floats(x))


def _two(function: Callable[..., jax.Array]) -> Callable[..., Tensor]:
    """Return a language function of two float arguments that applies a function of JAX; integers become float32."""

    def operate(x: Operand, y: Operand) -> Tensor:
        x, y, kind = values.to_common_type(x, y)
        if kind.is_int():
            x, y, kind = values.cast(x, float32), values.cast(y, float32), float32
        return values.compute(lambda xp, a, b: function(*jnp.broadcast_arrays(a, b)), kind, x, y)

    return operate


def _truth_of(function: Callable[..., jax.Array], kind: dtype = int1) -> Callable[[Operand], Tensor]:
    """Return a language function of one float argument with a mask, or an integer, as its result."""

    def operate(x: Operand) -> Tensor:
        x = _floats(x)
        return Tensor(function(x.array()).astype(canonical(kind)), kind, x.shape)

    return operate


@functools.cache  # one object for each name: `original` looks up the name by the object
def find(name: str) -> Any:
    """Return a function by its name; None where there is none."""
    name = _FAST.get(name, name)
    if name in _ONE:
        return _one(_ONE[name])
    if name in _TWO:
        return _two(_TWO[name])
    if name in ("isnan", "isinf", "isfinited", "finitef"):
        return _truth_of(getattr(jnp, name if name.startswith("isn") or name == "isinf" else "isfinite"))
    if name in ("signbit", "ilogb"):
        return _truth_of(jnp.signbit if name == "signbit" else _integer_logb, int32)
    if name in ("fabs", "fabsf"):
        return _language.abs
    if name in ("max", "min"):
        return _language.maximum if name == "max" else _language.minimum
    if name in _SAME:
        return getattr(_language, name)
    if name in ("mul_rn", "add_rn", "sub_rn"):
        return {"mul": values.multiply, "add": values.add, "sub": values.subtract}[name[:3]]
    if name in _TO_INTEGERS:
        function, kind = _TO_INTEGERS[name]
        return lambda x: values.cast(values.unary(_ONE[function], _floats(x)), kind)
    if name in _NORMS:
        return _norm(name)
    if name == "ldexp":
        return lambda x, n: values.compute(
            lambda xp, a, b: jnp.ldexp(*jnp.broadcast_arrays(a, b)), _floats(x).dtype, _floats(x), values.cast(n, int32)
        )
    if name == "ffs":
        return lambda x: Tensor(_first_bit(as_tensor(x).array()), int32, x.shape)
    if name == "popc":
        return lambda x: Tensor(lax.population_count(as_tensor(x).array()).astype(np.int32), int32, x.shape)
    if name == "clz":
        return lambda x: Tensor(lax.clz(as_tensor(x).array()).astype(np.int32), int32, x.shape)
    found = _libdevice_bits.find(name)
    return find(found) if isinstance(found, str) else found


_MODULES = [f"triton.language.{name}" for name in ("extra.libdevice", "extra.cuda.libdevice", "math")]


def __getattr__(name: str) -> Any:
    found = find(name)
    return refuse(name, *_MODULES) if found is None else found


def _norm(name: str) -> Callable[..., Tensor]:
    """Return the length of a vector of three or four floats, or its reciprocal."""

    def operate(*parts: Operand) -> Tensor:
        floats = [_floats(p) for p in parts]
        if len(floats) != _NORMS[name]:
            raise TypeError(f"libdevice.{name} takes {_NORMS[name]} numbers, not {len(floats)}")
        length = values.unary(jnp.sqrt, functools.reduce(values.add, (p * p for p in floats)))
        return values.true_divide(1.0, length) if name.startswith("r") else length

    return operate


def _first_bit(x: jax.Array) -> jax.Array:
    """Return the position of the lowest bit that is set, counted from 1; 0 for 0."""
    return jnp.where(x == 0, 0, lax.population_count((x & -x) - 1) + 1).astype(jnp.int32)
