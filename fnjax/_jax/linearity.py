"""What the operations of a traced rule tell of it where JAX itself would go on with a wrong number."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jax.extend.core import Literal, jaxprs_in_params

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
_OF_ZERO = {
    *("broadcast_in_dim", "convert_element_type", "reshape", "squeeze", "copy", "neg", "transpose"),
    *("pvary", "pcast"),  # a zero inside shard_map that is told to vary
}
_CALLS = {"jit", "pjit", "closed_call", "custom_jvp_call", "custom_vjp_call"}


def adds_constant(jaxpr: Any, depends: Sequence[bool], zeros: Sequence[bool]) -> bool:
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
    dependent = {v for v, d in zip(jaxpr.invars, depends, strict=True) if d}
    zero = {v for v, z in zip(jaxpr.invars, zeros, strict=True) if z}

    def depends_on(x: Any) -> bool:
        return not isinstance(x, Literal) and x in dependent

    def is_zero(x: Any) -> bool:
        return not np.any(x.val) if isinstance(x, Literal) else x in zero

    for eqn in jaxpr.eqns:
        name, given = eqn.primitive.name, list(map(depends_on, eqn.invars))
        data = eqn.invars[_JOINING.get(name, slice(0))]
        if any(map(depends_on, data)) and not all(depends_on(x) or is_zero(x) for x in data):
            return True, [], []
        subs = list(jaxprs_in_params(eqn.params)) if name in _CALLS else []
        if len(subs) == 1 and len(subs[0].invars) == len(eqn.invars):
            affine, outs, nothing = _walk(subs[0], given, list(map(is_zero, eqn.invars)))
            if affine:
                return True, [], []
        else:
            outs = [any(given)] * len(eqn.outvars)
            found = (name in _OF_ZERO and is_zero(eqn.invars[0])) or (name == "mul" and any(map(is_zero, eqn.invars)))
            nothing = [found] * len(eqn.outvars)
        dependent |= {v for v, d in zip(eqn.outvars, outs, strict=True) if d}
        zero |= {v for v, z in zip(eqn.outvars, nothing, strict=True) if z}
    return False, list(map(depends_on, jaxpr.outvars)), list(map(is_zero, jaxpr.outvars))


def hides_varying(jaxpr: Any) -> bool:
    """Whether a callback gets what varies over mesh axes and its result does not, as far as JAX knows.

    `jax.pure_callback` says nothing of mesh axes, so JAX takes its result for the same on all devices, and would sum
    its gradient over them. A `jax.lax.pcast` of the result says what it is.
    """
    told = {id(v) for eqn in jaxpr.eqns if eqn.primitive.name in ("pvary", "pcast") for v in eqn.invars}
    for eqn in jaxpr.eqns:
        if any(map(hides_varying, jaxprs_in_params(eqn.params))):
            return True
        if "callback" not in eqn.primitive.name:
            continue
        given = frozenset().union(*(varying(x.aval) for x in eqn.invars))
        if any(id(v) not in told and given - varying(v.aval) for v in eqn.outvars):
            return True
    return False


def varying(aval: Any) -> frozenset[Any]:
    """The mesh axes on which a value of this type varies inside shard_map."""
    return aval.mat.varying if hasattr(aval, "mat") else frozenset()
