"""checkify support: NaN, indices out of bounds and `checkify.check` inside forward and backward."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive

from fnjax._primitives.jax_internals import bound_by, has_effects, open_jaxpr
from fnjax._primitives.nondifferentiable import nondifferentiable
from fnjax._primitives.rule import Arrays
from fnjax._primitives.trace import trace
from fnjax._primitives.tree import is_ref


def check_with(
    primitive: Primitive,
    evaluate: Callable[..., Arrays],
    count: Callable[..., int],
    call: Callable[..., dict[str, Any]],
    recompute: Callable[..., Any] | None = None,
) -> None:
    """Let checkify evaluate the equations of a primitive, which have a `rule` and are calls to checkify.

    Args:
        primitive: the primitive.
        evaluate: operands, with the parameters → the results of an equation.
        count: the parameters → the number of operands of an equation.
        call: the parameters → those by which checkify takes an equation for a call, which it removed.
        recompute: see `bound_by`.
    """

    def check(run: Callable[..., Arrays], args: Sequence[Any], **params: Any) -> Arrays:
        n_errors = len(args) - count(**params)
        errors, operands = args[:n_errors], args[n_errors:]
        # The errors are those of the operations; the results and their derivatives are those of the equation.
        constant = [x if is_ref(x) else jax.lax.stop_gradient(x) for x in operands]
        traced = trace("checked", functools.partial(evaluate, **params), *constant)
        jaxpr = open_jaxpr(traced.jaxpr)
        results = run(jaxpr, *errors, *traced.closed_over, *constant)
        n_errors = len(results) - len(jaxpr.outvars)
        if has_effects(jaxpr):  # effects must not happen twice
            arrays = [x for x in operands if not is_ref(x)]
            return [
                *results[:n_errors],
                *nondifferentiable(results[n_errors:], arrays, lambda: params["rule"].error("checked")),
            ]
        return [*results[:n_errors], *primitive.bind(*operands, **{**params, **call(**params)})]

    bound_by(primitive, check, recompute)
