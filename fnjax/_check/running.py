"""Evaluation of programs: inlined calls, trust in `jax.vmap`, and cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.extend.core as jex
import numpy as np
from jax.extend.core import primitives

from fnjax._primitives.jax_internals import open_jaxpr
from fnjax._primitives.jaxprs import NONDIFFERENTIABLE, Marks, computes_its_body, iter_equations, propagate, read_body

# Primitives that jax.lax does not have under their names.
_OWN = {primitives.jit_p, primitives.add_jaxvals_p, primitives.name_p, primitives.random_bits_p}


def inline(closed: Any, args: Sequence[Any]) -> Any:
    """Return the program with its calls inlined, so that no custom rule is left in it outside loops.

    Args:
        closed: a closed jaxpr.
        args: its arguments, arrays or types of arrays.
    """
    if not any(computes_its_body(eqn) or eqn.primitive.name == NONDIFFERENTIABLE for eqn in open_jaxpr(closed).eqns):
        return closed
    return jax.make_jaxpr(lambda *args: evaluate(closed, args))(*args)


def evaluate(closed: Any, args: Sequence[Any]) -> list[Any]:
    """Evaluate a closed jaxpr, with calls replaced by their bodies."""
    jaxpr = open_jaxpr(closed)
    values: dict[Any, Any] = {}

    def read(atom: Any) -> Any:
        return atom.val if isinstance(atom, jex.Literal) else values[atom]

    values.update(zip(jaxpr.constvars, closed.consts, strict=True))
    values.update(zip(jaxpr.invars, args, strict=True))
    for eqn in jaxpr.eqns:
        operands = [read(atom) for atom in eqn.invars]
        body = read_body(eqn) if computes_its_body(eqn) else None
        if body is not None:
            results = evaluate(body, operands)
        elif eqn.primitive.name == NONDIFFERENTIABLE:  # returns its first operands; it affects derivatives only
            results = operands[: len(eqn.outvars)]
        else:
            results = eqn.primitive.bind(*operands, **eqn.params)
            results = results if eqn.primitive.multiple_results else [results]
        values.update(zip(eqn.outvars, results, strict=True))
    return [read(atom) for atom in jaxpr.outvars]


def is_jax_own(closed: Any) -> bool:
    """Return whether a program holds only operations whose batching rules come with JAX.

    `jax.vmap` is reliable for these. A user's batching rule is not under test when derivatives are, and a wrong one
    would affect both sides of the comparison.
    """
    return all(_is_own(eqn.primitive) for eqn in iter_equations(closed))


def _is_own(primitive: Any) -> bool:
    name = f"{primitive.name}_p"
    return primitive in _OWN or any(getattr(module, name, None) is primitive for module in (jax.lax, jax.lax.linalg))


def is_loop(eqn: Any) -> bool:
    """Return whether an equation runs a program several times."""
    return eqn.primitive.name in ("scan", "while")


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
