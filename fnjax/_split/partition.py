"""Partition of a program: the equations that some of its results need, and the rest."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from jax.extend.core import ClosedJaxpr, DebugInfo, Literal
from jax.interpreters.partial_eval import dce_jaxpr

# Operations that only change the layout of an array: cheaper to repeat than to keep their results.
_LAYOUT = {"transpose", "reshape", "broadcast_in_dim", "squeeze", "expand_dims", "copy", "name", "pvary", "pcast"}


class Partitioned(NamedTuple):
    """Partitioned program.

    Attributes:
        first: inputs → the requested results, then the residuals for the second part.
        second: these residuals, then the direct inputs → the other results.
        residuals: the types of the residuals.
    """

    first: ClosedJaxpr
    second: ClosedJaxpr
    residuals: list[Any]


def partition_equations(jaxpr: Any, in_first: Sequence[bool], direct: Sequence[bool]) -> Partitioned:
    """Partition a program; calls that both parts need must have been split before (`control_flow.partition_program`).

    Args:
        jaxpr: inputs → results.
        in_first: the results that the first part computes.
        direct: the inputs that the second part receives directly; what it needs of the others is passed as residuals.
    """
    needed = find_needed(jaxpr, in_first)
    second_results = [v for v, f in zip(jaxpr.outvars, in_first, strict=True) if not f]
    missing = set(variables(second_results))
    second_eqns = []
    for eqn in reversed(jaxpr.eqns):
        is_missing = not missing.isdisjoint(eqn.outvars)
        is_done = not needed.isdisjoint(eqn.outvars)
        if (is_missing and _is_layout(eqn)) if is_done else (is_missing or eqn.effects):
            second_eqns.append(eqn)
            missing = missing.difference(eqn.outvars).union(variables(eqn.invars))
    direct_inputs = [v for v, d in zip(jaxpr.invars, direct, strict=True) if d]
    first_eqns = [eqn for eqn in jaxpr.eqns if not needed.isdisjoint(eqn.outvars)]
    available = [*jaxpr.invars, *(v for eqn in first_eqns for v in eqn.outvars)]
    passed_on = missing.difference(direct_inputs)
    residuals = [v for v in available if v in passed_on]
    first_results = [v for v, f in zip(jaxpr.outvars, in_first, strict=True) if f]
    return Partitioned(
        ClosedJaxpr(part(jaxpr, jaxpr.invars, [*first_results, *residuals], first_eqns), ()),
        ClosedJaxpr(part(jaxpr, [*residuals, *direct_inputs], second_results, second_eqns[::-1]), ()),
        [v.aval for v in residuals],
    )


def find_needed(jaxpr: Any, results: Sequence[bool]) -> set[Any]:
    """Return the variables on which some results of a program depend; loops and branches are analysed inside."""
    needed = set(variables(v for v, r in zip(jaxpr.outvars, results, strict=True) if r))
    for eqn in reversed(jaxpr.eqns):
        results_needed = [v in needed for v in eqn.outvars]
        if all(results_needed):
            needed |= set(variables(eqn.invars))
        elif any(results_needed):
            needed |= _find_operands(jaxpr, eqn, results_needed)
    return needed


def _find_operands(jaxpr: Any, eqn: Any, needed: Sequence[bool]) -> set[Any]:
    """Return the operands on which some results of an equation depend, by JAX's dead code elimination."""
    if eqn.primitive.name == "optimization_barrier":
        return set(variables(x for x, n in zip(eqn.invars, needed, strict=True) if n))
    operands = list(dict.fromkeys(variables(eqn.invars)))
    results = [v for v, n in zip(eqn.outvars, needed, strict=True) if n]
    _, used = dce_jaxpr(part(jaxpr, operands, results, [eqn]), [True] * len(results))
    return {v for v, u in zip(operands, used, strict=True) if u}


def part(jaxpr: Any, inputs: Sequence[Any], results: Sequence[Any], eqns: Sequence[Any]) -> Any:
    """Return a program of some equations of another."""
    names = [tuple(f"{what} {i}" for i in range(len(xs))) for what, xs in (("input", inputs), ("result", results))]
    info = DebugInfo("fnjax", "part", *names)
    return jaxpr.replace(constvars=[], invars=list(inputs), outvars=list(results), eqns=list(eqns), debug_info=info)


def variables(atoms: Iterable[Any]) -> list[Any]:
    """Return the atoms that are not constants."""
    return [x for x in atoms if not isinstance(x, Literal)]


def _is_layout(eqn: Any) -> bool:
    if eqn.primitive.name == "convert_element_type":  # the smaller array is the one to keep
        return bool(eqn.invars[0].aval.dtype.itemsize <= eqn.outvars[0].aval.dtype.itemsize)
    return eqn.primitive.name in _LAYOUT
