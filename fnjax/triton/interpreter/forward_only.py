"""fnjax_one_way: an identity that is differentiable in forward mode only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from fnjax._primitives.rule import Arrays

one_way_p = Primitive("fnjax_one_way")
one_way_p.multiple_results = True


def one_way(values: Sequence[Any], error: type[Exception], text: str) -> Arrays:
    """Return `values`; raise `error(text)` if reverse mode transposes them.

    JAX's own error for an operation without a transpose names neither the user's method nor a remedy.
    """
    arrays: Arrays = one_way_p.bind(*values, error=error, text=text)
    return arrays


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Arrays, Arrays]:
    moving = [i for i, t in enumerate(tangents) if not isinstance(t, ad.Zero)]
    dots = list(tangents)
    for i, dot in zip(moving, one_way_p.bind(*(dots[i] for i in moving), **params), strict=True):
        dots[i] = dot
    return one_way_p.bind(*primals, **params), dots


def _raise(*_: Any, error: type[Exception], text: str) -> Any:
    raise error(text)


one_way_p.def_impl(lambda *args, **_: list(args))
one_way_p.def_abstract_eval(lambda *avals, **_: avals)
ad.primitive_jvps[one_way_p] = _jvp
ad.primitive_transposes[one_way_p] = _raise
batching.primitive_batchers[one_way_p] = lambda args, dims, **params: (one_way_p.bind(*args, **params), dims)
mlir.register_lowering(one_way_p, lambda ctx, *args, **_: list(args))
