"""Reading programs, which JAX calls jaxprs: the names of our equations, which equations are calls, what is in them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jax
from jax.extend.core import primitives

from fnjax._jax.jax_internals import open_jaxpr

# Our primitives: a call of a Function, its derivative, and values that must not be differentiated.
FORWARD, BACKWARD, WALL = "fnjax_call", "fnjax_linear", "fnjax_wall"

# JAX's calls: the operations in the body are what is computed; the rest is about compiling and differentiating.
CALLS = frozenset({
    primitives.jit_p,
    primitives.closed_call_p,
    primitives.custom_jvp_call_p,
    primitives.custom_vjp_call_p,
})  # fmt: skip
# These are too, as long as nobody batches or differentiates them.
_CALLS_FORWARD = {"custom_vmap_call", FORWARD}


def computes_its_body(eqn: Any) -> bool:
    """Whether an equation that is neither batched nor differentiated is nothing but its body."""
    return eqn.primitive in CALLS or eqn.primitive.name in _CALLS_FORWARD


def read_body(eqn: Any) -> Any:
    """The only program in an equation that takes its operands and gives its results; None where there is none."""
    if eqn.primitive.name == FORWARD:
        return eqn.params["body"].jaxpr
    found = [program for program in _programs_in(eqn) if _fits(open_jaxpr(program), eqn)]
    return found[0] if len(found) == 1 else None


def _fits(jaxpr: Any, eqn: Any) -> bool:
    return len(jaxpr.invars) == len(eqn.invars) and len(jaxpr.outvars) == len(eqn.outvars)


def walk_equations(program: Any) -> Iterator[Any]:
    """All equations of a program, also those inside of calls, loops and branches."""
    for eqn in open_jaxpr(program).eqns:
        yield eqn
        for inner in _programs_in(eqn):
            yield from walk_equations(inner)


def _programs_in(eqn: Any) -> Iterator[Any]:
    """The programs among the parameters of an equation, closed or open as they stand there."""
    for value in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
        if hasattr(open_jaxpr(value), "eqns"):
            yield value
