"""Transposition of linear functions, after a check that they are: JAX would silently return a wrong value for others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters import ad

from fnjax._primitives.jax_internals import is_sharding_error, open_jaxpr, without_writes
from fnjax._primitives.linearity import is_linear
from fnjax._primitives.rule import Arrays, Rule
from fnjax._primitives.trace import trace
from fnjax.errors import FnjaxError


def transpose(fun: Callable[..., Arrays], avals: Sequence[Any], vectors: Sequence[Any], rule: Rule) -> Arrays:
    """Apply the transpose of a linear function (which may return None for zero) to `vectors`.

    Raises:
        FnjaxError: if the function is not linear, or JAX cannot transpose one of its operations.
    """
    zeros = list(map(ad.zeros_like_aval, avals))  # rather than types: zeros carry the mesh axes on which they vary
    jaxpr, closed_over, result = trace(rule.name, fun, *zeros)
    if jaxpr.effects:  # backward's writes to Refs are not part of its transpose
        part = without_writes(open_jaxpr(jaxpr), [True] * len(jaxpr.out_avals))
        if part is None:
            raise rule.error("not linear")
        jaxpr = ClosedJaxpr(part, ())

    if not is_linear(jaxpr, closed_over):
        raise rule.error("not linear")
    present = [child.num_leaves > 0 for child in result.children()]
    given = [v for v, p in zip(vectors, present, strict=True) if p]

    def linear(*xs: Any) -> Any:
        return jaxpr_as_fun(jaxpr)(*closed_over, *xs)

    try:
        return list(jax.linear_transpose(linear, *zeros)(given))
    except Exception as e:  # any error of JAX about an operation without a transpose
        if isinstance(e, NotImplementedError) and "unique_indices" in str(e):  # x.at[i].set(y), which has a derivative
            return list(jax.vjp(linear, *zeros)[1](given))
        if isinstance(e, FnjaxError) or is_of_a_method(e) or is_sharding_error(e):
            raise
        raise rule.error("not linear") from e


def mark_as_of_a_method(e: Exception) -> None:
    """Mark an exception that a user's method raised, to distinguish it from JAX's about transposes."""
    vars(e)[_MARK] = True


_MARK = "_raised_by_a_method"


def is_of_a_method(e: Exception) -> bool:
    """Return whether an exception was raised inside a user's method."""
    return _MARK in vars(e)
