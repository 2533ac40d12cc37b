"""fnjax_nondifferentiable: an identity that must not be differentiated."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from fnjax._primitives.jax_internals import make_cache_anchor, opened_by
from fnjax._primitives.jaxprs import NONDIFFERENTIABLE
from fnjax._primitives.rule import Arrays

nondifferentiable_p = Primitive(NONDIFFERENTIABLE)
nondifferentiable_p.multiple_results = True


def nondifferentiable(values: Sequence[Any], depends_on: Sequence[Any], make_error: Callable[[], Exception]) -> Arrays:
    """Return `values`; raise `make_error()` if they, or what they depend on, are differentiated.

    The error is built when that happens, so it must not hold an array of this trace.
    """
    params = {"n_values": len(values), "error": _Error(make_error), "cache_anchor": make_cache_anchor()}
    arrays: Arrays = nondifferentiable_p.bind(*values, *depends_on, **params)
    return arrays


class _Error:
    """Function that builds an error, printed without an address."""

    def __init__(self, make: Callable[[], Exception]) -> None:
        self.make = make

    def __repr__(self) -> str:
        return "..."


def _raise(*_: Any, error: _Error, **__: Any) -> Any:
    raise error.make()


def _impl(*args: Any, n_values: int, **_: Any) -> Arrays:
    return list(args[:n_values])


nondifferentiable_p.def_impl(_impl)
opened_by(nondifferentiable_p, _impl)
nondifferentiable_p.def_abstract_eval(lambda *avals, n_values, **_: avals[:n_values])
ad.primitive_jvps[nondifferentiable_p] = _raise
ad.primitive_transposes[nondifferentiable_p] = _raise
batching.primitive_batchers[nondifferentiable_p] = lambda args, dims, *, n_values, **params: (
    nondifferentiable_p.bind(*args, n_values=n_values, **params),
    dims[:n_values],
)
mlir.register_lowering(nondifferentiable_p, lambda ctx, *args, n_values, **_: list(args[:n_values]), cacheable=False)
