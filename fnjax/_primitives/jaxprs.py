"""Inspection of programs (jaxprs): names of fnjax's primitives, calls, bodies, nested equations, marks."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
from jax.extend.core import Literal, primitives

from fnjax._primitives.jax_equations import read_branches, read_scan, read_while
from fnjax._primitives.jax_internals import open_jaxpr
from fnjax._primitives.types import Eqn, Jaxpr

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


def computes_its_body(eqn: Eqn) -> bool:
    """Return whether an equation computes exactly its body, while it is neither batched nor differentiated."""
    return eqn.primitive in CALLS or eqn.primitive.name in _CALLS_FORWARD


def read_body(eqn: Eqn) -> Any:
    """Return the only program in an equation with the same numbers of inputs and results; None if there is none."""
    if eqn.primitive.name == FORWARD:
        return eqn.params["body"].jaxpr
    found = [program for program in programs_in(eqn) if _fits(open_jaxpr(program), eqn)]
    return found[0] if len(found) == 1 else None


def _fits(jaxpr: Jaxpr, eqn: Eqn) -> bool:
    return len(jaxpr.invars) == len(eqn.invars) and len(jaxpr.outvars) == len(eqn.outvars)


def iter_equations(program: Jaxpr) -> Iterator[Eqn]:
    """Yield all equations of a program, including those inside calls, loops and branches."""
    for eqn in open_jaxpr(program).eqns:
        yield eqn
        for inner in programs_in(eqn):
            yield from iter_equations(inner)


def programs_in(eqn: Eqn) -> Iterator[Jaxpr]:
    """Yield the programs among the parameters of an equation, closed or open as they are."""
    for value in jax.tree.leaves(list(eqn.params.values()), is_leaf=lambda x: hasattr(x, "eqns")):
        if hasattr(open_jaxpr(value), "eqns"):
            yield value


Marks = list[Any]


def propagate(
    program: Jaxpr,
    given: Sequence[Any],
    mark: Callable[[Eqn, Marks, Callable[[Marks], Marks | None]], Marks],
    mark_constant: Callable[[Any], Any],
) -> Marks:
    """Return marks of the results of a program (abstract interpretation), through calls, loops and branches.

    The marks may also be arrays: where `mark` evaluates an equation, the program is evaluated.

    Args:
        program: a jaxpr.
        given: the marks of its inputs. Two marks are joined by `|`; loops end since marks only grow.
        mark: (equation, marks of its operands, inside) → marks of its results. `inside` computes them from the marks
            of the operands by the programs in the equation; it returns None if these are not a call, loop or branch.
        mark_constant: a literal, or an array that the program holds → its mark.
    """
    jaxpr = open_jaxpr(program)
    marks = dict(zip(jaxpr.invars, given, strict=True))
    marks |= zip(jaxpr.constvars, map(mark_constant, getattr(program, "consts", ())), strict=True)

    def read(atoms: Sequence[Any]) -> Marks:
        return [mark_constant(x) if isinstance(x, Literal) else marks[x] for x in atoms]

    def follow(program: Jaxpr, given: Sequence[Any]) -> Marks:
        return propagate(program, given, mark, mark_constant)

    for eqn in jaxpr.eqns:
        inside = functools.partial(_propagate_inside, eqn, follow)
        marks |= zip(eqn.outvars, mark(eqn, read(eqn.invars), inside), strict=True)
    return read(jaxpr.outvars)


def _propagate_inside(eqn: Eqn, follow: Callable[[Jaxpr, Sequence[Any]], Marks], given: Marks) -> Marks | None:
    if eqn.primitive is primitives.scan_p:
        body, start, n, _ = read_scan(eqn)
        fixed, carried, scanned = given[:start], given[start : start + n], given[start + n :]
        return _repeat(lambda carried: follow(body, [*fixed, *carried, *scanned]), carried)
    if eqn.primitive is primitives.while_p:
        condition, body, n, n_body = read_while(eqn)

        def iterate(carried: Marks) -> Marks:
            (goes_on,) = follow(condition, [*given[:n], *carried])
            return [goes_on | m for m in follow(body, [*given[n : n + n_body], *carried])]

        return _repeat(iterate, given[n + n_body :])
    if eqn.primitive is primitives.cond_p:
        branches = [follow(branch, given[1:]) for branch in read_branches(eqn)]
        return [functools.reduce(operator.or_, marks, given[0]) for marks in zip(*branches, strict=True)]
    is_call = computes_its_body(eqn) or eqn.primitive is primitives.remat_p or eqn.primitive.name == "shard_map"
    body = read_body(eqn) if is_call else None
    return None if body is None else follow(body, given)


def _repeat(iterate: Callable[[Marks], Marks], carried: Marks) -> Marks:
    """Return the marks of what a loop carries, and of its other results, at the fixpoint."""
    while True:
        results = iterate(carried)
        grown = [before | after for before, after in zip(carried, results, strict=False)]
        if grown == carried:
            return [*carried, *results[len(carried) :]]
        carried = grown
