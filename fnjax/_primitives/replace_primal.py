"""fnjax_replace_primal: another array in the place of one, with the derivative of that, to any order.

A `jax.custom_jvp` would say the same, but JAX 0.10 drops its rule inside `scan` when it differentiates twice.
"""

from __future__ import annotations

from typing import Any

from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

replace_primal_p = Primitive("fnjax_replace_primal")


def replace_primal(array: Any, value: Any) -> Any:
    """Return `value`, whose derivative is that of `array`; both have the same shape and dtype.

    The program does not use `array`, so that it need not be kept.
    """
    return replace_primal_p.bind(array, value)


def _jvp(primals: Any, tangents: Any) -> tuple[Any, Any]:
    """Return the value with the tangent of the array that it replaces."""
    return replace_primal_p.bind(*primals), tangents[0]


def _batch(args: Any, dims: Any) -> tuple[Any, Any]:
    """Batch both arrays along axis 0, as they must have the same shape."""
    size = next(x.shape[d] for x, d in zip(args, dims, strict=True) if d is not None)
    return replace_primal_p.bind(*(batching.bdim_at_front(x, d, size) for x, d in zip(args, dims, strict=True))), 0


replace_primal_p.def_impl(lambda _, value: value)
replace_primal_p.def_abstract_eval(lambda _, value: value)
ad.primitive_jvps[replace_primal_p] = _jvp
batching.primitive_batchers[replace_primal_p] = _batch
mlir.register_lowering(replace_primal_p, lambda ctx, _, value: [value])
