"""fnjax_forward_only: an identity that is differentiable in forward mode only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from fnjax._primitives.rule import Arrays

forward_only_p = Primitive("fnjax_forward_only")
forward_only_p.multiple_results = True


def forbid_transpose(values: Sequence[Any], error: Callable[[str], Exception], text: str) -> Arrays:
    """Return `values`; raise `error(text)` if reverse mode transposes them.

    JAX's own error for an operation without a transpose names neither the user's method nor a remedy.
    """
    arrays: Arrays = forward_only_p.bind(*values, error=error, text=text)
    return arrays


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Arrays, Arrays]:
    perturbed = [i for i, t in enumerate(tangents) if not isinstance(t, ad.Zero)]
    dots = list(tangents)
    for i, dot in zip(perturbed, forward_only_p.bind(*(dots[i] for i in perturbed), **params), strict=True):
        dots[i] = dot
    return forward_only_p.bind(*primals, **params), dots


def _raise(*_: Any, error: Callable[[str], Exception], text: str) -> Any:
    raise error(text)


forward_only_p.def_impl(lambda *args, **_: list(args))
forward_only_p.def_abstract_eval(lambda *avals, **_: avals)
ad.primitive_jvps[forward_only_p] = _jvp
ad.primitive_transposes[forward_only_p] = _raise
batching.primitive_batchers[forward_only_p] = lambda args, dims, **params: (forward_only_p.bind(*args, **params), dims)
mlir.register_lowering(forward_only_p, lambda ctx, *args, **_: list(args))
