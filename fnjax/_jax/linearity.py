"""Transposing linear functions, and refusing those that are not linear, where JAX would go on with a wrong number."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.core import Literal, jaxpr_as_fun, primitives
from jax.interpreters import ad

from fnjax._errors import FnjaxError
from fnjax._jax.jax_internals import is_sharding_error, open_jaxpr
from fnjax._jax.programs import CALLS, read_body
from fnjax._jax.rule import Arrays, Rule
from fnjax._jax.trace import trace
from fnjax._jax.trees import is_tracer

# For operations that put arrays together: their operands that are data.
_JOINING = {
    "add": slice(None),
    "sub": slice(None),
    "add_any": slice(None),
    "select_n": slice(1, None),
    "concatenate": slice(None),
    "pad": slice(None),
    "dynamic_update_slice": slice(2),
    "scatter": slice(0, 3, 2),
    "scatter-add": slice(0, 3, 2),
}
_OPENED = CALLS | {primitives.remat_p}
_OF_ZERO = {
    *("broadcast_in_dim", "convert_element_type", "reshape", "squeeze", "copy", "neg", "transpose"),
    *("pvary", "pcast"),  # a zero inside shard_map that is told to vary
    "reshard",
}


def transpose(fun: Callable[..., Arrays], avals: Sequence[Any], vectors: Sequence[Any], rule: Rule) -> Arrays:
    """Apply the transpose of a linear function (which may return None for zero) to `vectors`."""
    try:  # zeros rather than types: these know on which mesh axes they vary
        zeros = list(map(ad.zeros_like_aval, avals))
        jaxpr, captured, result = trace(rule.name, fun, *zeros)
        n = len(captured)
        known = [_is_known_zero(x) for x in captured]
        if _adds_constant(open_jaxpr(jaxpr), [False] * n + [True] * len(zeros), known + [False] * len(zeros)):
            raise rule.error("not linear")
        present = [child.num_leaves > 0 for child in result.children()]
        given = [v for v, p in zip(vectors, present, strict=True) if p]
        return list(jax.linear_transpose(lambda *xs: jaxpr_as_fun(jaxpr)(*captured, *xs), *zeros)(given))
    except FnjaxError:
        raise
    except Exception as e:  # whatever JAX says of an operation without a transpose
        if is_sharding_error(e):
            raise
        raise rule.error("not linear") from e


def _is_known_zero(array: Any) -> bool:
    if is_tracer(array) or jnp.issubdtype(array.dtype, jax.dtypes.extended):  # a PRNG key has no zero
        return False
    return not np.any(array)


def _adds_constant(jaxpr: Any, depends: Sequence[bool], zeros: Sequence[bool]) -> bool:
    """Whether something else than zero is added to what depends on the linear inputs: g + 1 is affine, not linear.

    `jax.linear_transpose` takes such a function for linear. This sees the usual ways to write one; it does not look
    into loops.

    Args:
        jaxpr: the operations.
        depends: which inputs are the linear ones.
        zeros: which inputs are known to be zero.
    """
    return _walk(jaxpr, depends, zeros)[0]


def _walk(jaxpr: Any, depends: Sequence[bool], zeros: Sequence[bool]) -> tuple[bool, list[bool], list[bool]]:
    # Two marks for each variable: whether it depends on the linear inputs, and whether it is known to be zero.
    dependent = {v for v, d in zip(jaxpr.invars, depends, strict=True) if d}
    zero = {v for v, z in zip(jaxpr.invars, zeros, strict=True) if z}

    def depends_on(x: Any) -> bool:
        return not isinstance(x, Literal) and x in dependent

    def is_zero(x: Any) -> bool:
        return not np.any(x.val) if isinstance(x, Literal) else x in zero

    for eqn in jaxpr.eqns:
        # Only operations that put arrays together can add a constant: JAX has a transpose for these whatever they get.
        name, given = eqn.primitive.name, list(map(depends_on, eqn.invars))
        data = eqn.invars[_JOINING.get(name, slice(0))]
        if any(map(depends_on, data)) and not all(depends_on(x) or is_zero(x) for x in data):
            return True, [], []
        body = read_body(eqn) if eqn.primitive in _OPENED else None
        if body is not None:
            affine, outs, nothing = _walk(open_jaxpr(body), given, list(map(is_zero, eqn.invars)))
            if affine:
                return True, [], []
        else:
            outs = [any(given)] * len(eqn.outvars)
            found = (name in _OF_ZERO and is_zero(eqn.invars[0])) or (name == "mul" and any(map(is_zero, eqn.invars)))
            nothing = [found] * len(eqn.outvars)
        dependent |= {v for v, d in zip(eqn.outvars, outs, strict=True) if d}
        zero |= {v for v, z in zip(eqn.outvars, nothing, strict=True) if z}
    return False, list(map(depends_on, jaxpr.outvars)), list(map(is_zero, jaxpr.outvars))
