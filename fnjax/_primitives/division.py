"""A division that is correctly rounded on each device, where XLA would multiply by a reciprocal; linear as lax.div."""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from fnjax._primitives.jax_internals import opened_by, varying

division_p = Primitive("div")  # the name by which programs are read: it has the value and the derivatives of lax.div


def quotient(a: Any, b: Any, plain_derivative: bool = False) -> Any:
    """Return a / b, correctly rounded.

    XLA multiplies by 1 / b where b is a constant or is broadcast, and rewrites x / s / t and 1 / sqrt(x).

    Args:
        a: the dividend.
        b: the divisor.
        plain_derivative: the derivative is (da - a / b · db) / b, which XLA rounds as it likes; otherwise
            da / b - db · (a / b / b), rounded as by PyTorch.
    """
    own = jnp.result_type(a, b)
    is_power = isinstance(b, (int, float)) and abs(math.frexp(b)[0]) == 0.5  # of two: its reciprocal is exact
    if is_power or not jnp.issubdtype(own, jnp.floating):
        return a / b
    a, b = jnp.asarray(a, own), jnp.asarray(b, own)
    shape = jnp.broadcast_shapes(a.shape, b.shape)
    a, b = jnp.broadcast_to(a, shape), b.reshape((1,) * (len(shape) - b.ndim) + b.shape)
    further = varying(jax.typeof(b)) - varying(jax.typeof(a))
    a = jax.lax.pcast(a, tuple(further), to="varying") if further else a
    return division_p.bind(a, b, plain_derivative=plain_derivative)


def _opaque(x: Any) -> Any:
    """Return floats unchanged; XLA does not simplify a division with the operation that computes them."""
    if x.dtype not in (np.float32, np.float64):
        return x
    bits = jnp.finfo(x.dtype)  # type: ignore[no-untyped-call] # JAX
    return jax.lax.reduce_precision(x, bits.nexp, bits.nmant)


def _divide(a: Any, b: Any, **_: Any) -> Any:
    a = _opaque(a)
    return a / jnp.where(a < -jnp.inf, a, _opaque(b))  # nothing is, but XLA does not know that


def _jvp(primals: Any, tangents: Any, plain_derivative: bool) -> tuple[Any, Any]:
    (a, b), (da, db) = primals, tangents
    divide = functools.partial(division_p.bind, plain_derivative=plain_derivative)
    result = divide(a, b)
    terms = [] if isinstance(da, ad.Zero) else [da if plain_derivative else divide(da, b)]
    if not isinstance(db, ad.Zero):
        terms.append(-db * (a / b if plain_derivative else divide(result, b)))
    change = sum(terms[1:], terms[0])
    return result, change / b if plain_derivative else change


def _transpose(cotangent: Any, a: Any, b: Any, **how: Any) -> list[Any]:
    return [ad.Zero(a.aval) if isinstance(cotangent, ad.Zero) else division_p.bind(cotangent, b, **how), None]


def _batch(args: Any, dims: Any, **how: Any) -> tuple[Any, int]:
    size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
    a, b = (x[None] if d is None else jnp.moveaxis(x, d, 0) for x, d in zip(args, dims, strict=True))
    return division_p.bind(jnp.broadcast_to(a, (size, *a.shape[1:])), b, **how), 0


division_p.def_impl(jax.jit(_divide, static_argnames="plain_derivative"))
opened_by(division_p, _divide)
division_p.def_abstract_eval(lambda a, b, **_: a)
ad.primitive_jvps[division_p] = _jvp
ad.primitive_transposes[division_p] = _transpose
batching.primitive_batchers[division_p] = _batch
mlir.register_lowering(division_p, mlir.lower_fun(_divide, multiple_results=False))
