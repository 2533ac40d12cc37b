"""Inspection of programs (jaxprs): names of fnjax's primitives, calls, bodies, nested equations."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
from jax.extend.core import primitives

from fnjax._primitives.jax_internals import open_jaxpr

# Our primitives: a call of a Function, its derivative, and values that must not be differentiated.
FORWARD, BACKWARD, NONDIFFERENTIABLE = "fnjax_call", "fnjax_linear", "fnjax_nondifferentiable"

# JAX's calls: the operations in the body are what is computed; the rest is about compiling and differentiating.
CALLS = frozenset({
    primitives.jit_p,
    primitives.closed_call_p,
    primitives.custom_jvp_call_p,
    primitives.custom_vjp_call_p,
})  # fmt: skip
# These are too, while they are neither batched nor differentiated.
_CALLS_FORWARD = {"custom_vmap_call", FORWARD}


def computes_its_body(eqn: Any) -> bool:
    """Return whether an equation computes exactly its body, while it is neither batched nor differentiated."""
    return eqn.primitive in CALLS or eqn.primitive.name in _CALLS_FORWARD


def read_body(eqn: Any) -> Any:
    """Return the only program in an equation with the same numbers of inputs and results; None if there is none."""
    if eqn.primitive.name == FORWARD:
        return eqn.params["body"].jaxpr
    found = [program for program in _programs_in(eqn) if _fits(open_jaxpr(program), eqn)]
    return found[0] if len(found) == 1 else None


def _fits(jaxpr: Any, eqn: Any) -> bool:
    return len(jaxpr.invars) == len(eqn.invars) and len(jaxpr.outvars) == len(eqn.outvars)


def iter_equations(program: Any) -> Iterator[Any]:
    """Yield all equations of a program, including those inside calls, loops and branches."""
    for eqn in open_jaxpr(program).eqns:
        yield eqn
        for inner in _programs_in(eqn):
            yield from iter_equations(inner)


def _programs_in(eqn: Any) -> Iterator[Any]:
    """Yield the programs among the parameters of an equation, closed or open as they are."""
    for value in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
        if hasattr(open_jaxpr(value), "eqns"):
            yield value
