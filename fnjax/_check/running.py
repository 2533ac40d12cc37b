"""Evaluation of programs: inlined calls, trust in `jax.vmap`, and cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal, primitives

from fnjax._primitives.jax_internals import open_jaxpr
from fnjax._primitives.jaxprs import BACKWARD, NONDIFFERENTIABLE, Marks, computes_its_body, iter_equations, propagate

# Primitives that jax.lax does not have under their names.
_OWN = {primitives.jit_p, primitives.add_jaxvals_p, primitives.name_p, primitives.random_bits_p}


def inline(closed: Any, args: Sequence[Any], *, derivatives: bool = True) -> Any:
    """Return the program with its calls inlined, so that no custom rule is left in it outside loops.

    Args:
        closed: a closed jaxpr.
        args: its arguments, arrays or types of arrays.
        derivatives: whether the derivatives of Functions are calls, too: what the user's methods compute then.
    """
    calls = [NONDIFFERENTIABLE, BACKWARD] if derivatives else [NONDIFFERENTIABLE]
    if not any(_is_call(eqn) or eqn.primitive.name in calls for eqn in open_jaxpr(closed).eqns):
        return closed
    return jax.make_jaxpr(lambda *args: evaluate(closed, args, derivatives=derivatives))(*args)


def evaluate(closed: Any, args: Sequence[Any], *, derivatives: bool = True) -> list[Any]:
    """Evaluate a closed jaxpr, with calls replaced by their bodies."""

    def run(eqn: Any, operands: list[Any], inside: Callable[[list[Any]], list[Any] | None]) -> list[Any]:
        if _is_call(eqn) and (results := inside(operands)) is not None:
            return results
        if eqn.primitive.name == NONDIFFERENTIABLE:  # returns its first operands; it affects derivatives only
            return operands[: len(eqn.outvars)]
        compute = eqn.primitive.impl if derivatives and eqn.primitive.name == BACKWARD else eqn.primitive.bind
        results = compute(*operands, **eqn.params)
        return results if eqn.primitive.multiple_results else [results]

    return propagate(closed, args, run, lambda x: x.val if isinstance(x, Literal) else x)


def _is_call(eqn: Any) -> bool:
    return computes_its_body(eqn) or eqn.primitive is primitives.remat_p


def is_jax_own(closed: Any) -> bool:
    """Return whether a program holds only operations whose batching rules come with JAX.

    `jax.vmap` is reliable for these. A user's batching rule is not under test when derivatives are, and a wrong one
    would affect both sides of the comparison.
    """
    return all(_is_own(eqn.primitive) for eqn in iter_equations(closed))


def _is_own(primitive: Any) -> bool:
    name = f"{primitive.name}_p"
    return primitive in _OWN or any(getattr(module, name, None) is primitive for module in (jax.lax, jax.lax.linalg))


def measure_cost(closed: Any) -> tuple[int, int]:
    """Return the number of results of a program's operations, and their bytes."""
    outs = [v.aval for eqn in iter_equations(closed) for v in eqn.outvars if hasattr(v.aval, "shape")]
    return len(outs), 8 * sum(int(np.prod(aval.shape)) for aval in outs)


def find_dependent(closed: Any) -> list[bool]:
    """Return for each output of a program whether it depends on an input."""

    def mark(eqn: Any, given: Marks, inside: Callable[[Marks], Marks | None]) -> Marks:
        found = inside(given)
        return [any(given)] * len(eqn.outvars) if found is None else found

    return propagate(closed, [True] * len(open_jaxpr(closed).invars), mark, lambda _: False)
