"""fnjax_report: errors reported to the host while a program runs, if the program can call the host.

A program that is lowered on one machine for another, or exported, cannot call Python, and `jax.debug.callback` cannot
be lowered there at all. Such a program returns NaN instead.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from fnjax._primitives.jax_internals import can_call_host
from fnjax._primitives.rule import Arrays

report_p = Primitive("fnjax_report")
report_p.multiple_results = True


def report(look: Callable[[jax.Array], None], mark: jax.Array, results: Sequence[jax.Array]) -> Arrays:
    """Call `look` on the host when the program runs, and return `results`.

    Where the program cannot call the host, after a fault floats are NaN, and integers the largest of their type.

    Args:
        look: called with the mark; it may raise. In a batch it is called with the first mark that is not zero.
        mark: integers, the first of which is zero if there is no fault.
        results: arrays, those that a fault makes meaningless. If nothing uses them, the call is removed, too.
    """
    found: Arrays = report_p.bind(mark, *results, look=look)
    return found


def _impl(mark: jax.Array, *results: jax.Array, look: Callable[[jax.Array], None]) -> Arrays:
    look(mark)
    return list(results)


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Arrays, Sequence[Any]]:
    return report_p.bind(*primals, **params), tangents[1:]


def _batch(operands: Sequence[Any], dims: Sequence[Any], **params: Any) -> tuple[Any, Sequence[Any]]:
    mark, *results = operands
    if dims[0] is not None:
        marks = jnp.moveaxis(mark, dims[0], 0)
        mark = marks[jnp.argmax(marks[:, 0] != 0)]
    return report_p.bind(mark, *results, **params), dims[1:]


def _call(mark: jax.Array, *results: jax.Array, look: Callable[[jax.Array], None]) -> Arrays:
    jax.debug.callback(look, mark)
    return list(results)


def _spoil(mark: jax.Array, *results: jax.Array, look: Callable[[jax.Array], None]) -> Arrays:
    return [jnp.where(mark[0] == 0, x, _worst(x.dtype)) for x in results]


def _worst(dtype: np.dtype[Any]) -> jax.Array:
    if jnp.issubdtype(dtype, jnp.inexact):
        return jnp.asarray(jnp.nan, dtype)
    return jnp.asarray(True if jnp.issubdtype(dtype, jnp.bool_) else np.iinfo(dtype).max, dtype)


def _lower(ctx: mlir.LoweringRuleContext, *operands: Any, look: Callable[[jax.Array], None]) -> Any:
    function = _call if can_call_host(ctx) else _spoil
    return mlir.lower_fun(function, multiple_results=True)(ctx, *operands, look=look)


report_p.def_impl(_impl)
report_p.def_abstract_eval(lambda mark, *results, look: list(results))
ad.primitive_jvps[report_p] = _jvp
batching.primitive_batchers[report_p] = _batch
mlir.register_lowering(report_p, _lower)
