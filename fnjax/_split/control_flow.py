"""Partition of a program through calls, loops and branches: one that both parts need becomes two."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import jaxpr_as_fun, primitives
from jax.interpreters import ad
from jax.interpreters.partial_eval import dce_jaxpr

from fnjax._primitives.jax_equations import bind_remat, read_branches, read_scan, read_shard_map
from fnjax._primitives.jax_internals import open_jaxpr, varying
from fnjax._primitives.jaxprs import read_body
from fnjax._primitives.rule import Arrays, select
from fnjax._primitives.trace import trace
from fnjax._split.partition import Partitioned, find_needed, part, partition_equations, variables

Flags = Sequence[bool]


def partition(program: Any, ours: Flags, direct: Flags, avals: Sequence[Any] | None = None) -> Partitioned:
    """Partition a program that captures nothing, through its loops and branches.

    Args:
        program: inputs → results.
        ours: the results that the first part computes.
        direct: the inputs that the second part receives directly.
        avals: the types of the inputs, if they differ from those of the program.
    """
    jaxpr = open_jaxpr(program)
    traced = trace("parts", lambda *xs: _evaluate(jaxpr, (), xs, ours), *(avals or (v.aval for v in jaxpr.invars)))
    # The new loops and branches take more operands than they need.
    jaxpr, _ = dce_jaxpr(open_jaxpr(traced.jaxpr), [True] * len(ours), instantiate=True)
    return partition_equations(jaxpr, ours, direct)


def _evaluate(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], ours: Flags) -> Arrays:
    """Evaluate a program; an equation that both parts need is replaced by two."""
    needed = find_needed(jaxpr, ours)
    used = find_needed(jaxpr, [True] * len(ours))
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

    def read(atom: Any) -> Any:
        return values[atom] if variables([atom]) else jnp.asarray(atom.val, atom.aval.dtype)

    for eqn in jaxpr.eqns:
        mine = [v in needed for v in eqn.outvars]
        rule = _RULES.get(eqn.primitive.name)
        if rule and any(mine) and any(v in used and v not in needed for v in eqn.outvars):
            results = dict(zip(eqn.outvars, rule(eqn, list(map(read, eqn.invars)), mine), strict=True))
        else:
            inputs, outputs = list(dict.fromkeys(variables(eqn.invars))), [v for v in eqn.outvars if v in used]
            if not outputs and not eqn.effects:
                continue
            # By eval_jaxpr rather than bind, which keeps the equation's scopes and contexts.
            found = jax.core.eval_jaxpr(part(jaxpr, inputs, outputs, [eqn]), (), *(values[v] for v in inputs))
            results = dict(zip(outputs, found, strict=True))
        values.update(results)
    return list(map(read, jaxpr.outvars))


def _join(ours: Flags, mine: Sequence[Any], theirs: Sequence[Any]) -> Arrays:
    first, second = iter(mine), iter(theirs)
    return [next(first) if o else next(second) for o in ours]


def _split_call(eqn: Any, args: Arrays, ours: Flags) -> Arrays:
    """Inline a call: the equations of its body are split one by one."""
    body = read_body(eqn)
    return _evaluate(open_jaxpr(body), getattr(body, "consts", ()), args, ours)


def _split_barrier(eqn: Any, args: Arrays, ours: Flags) -> Arrays:
    """Split an optimization barrier in two, since one would make each part depend on the other."""
    theirs = [not o for o in ours]
    return _join(ours, *(jax.lax.optimization_barrier(select(args, these)) for these in (ours, theirs)))


def _split_remat(eqn: Any, args: Arrays, ours: Flags) -> Arrays:
    """Recompute in the first part only; the second receives the residuals that it needs."""
    parts = partition(read_body(eqn), ours, [True] * len(args))
    n = sum(ours)
    results = bind_remat(eqn, parts.first, args)
    return _join(ours, results[:n], jaxpr_as_fun(parts.second)(*results[n:], *args))


def _split_scan(eqn: Any, args: Arrays, ours: Flags) -> Arrays:
    """Split a scan in two; the first stacks what the second needs of each iteration."""
    body, n_fixed, n_carried, how = read_scan(eqn)
    jaxpr, consts = open_jaxpr(body), getattr(body, "consts", ())
    fixed, carried, scanned = args[:n_fixed], args[n_fixed : n_fixed + n_carried], args[n_fixed + n_carried :]
    jaxpr = _take_in(jaxpr)
    fixed, n_fixed = [*consts, *fixed], n_fixed + len(consts)
    mine, grown = list(ours), None
    while mine != grown:  # what the first part carries, it needs from the previous iteration
        grown = list(mine)
        needed = find_needed(jaxpr, mine)
        for i, v in enumerate(jaxpr.invars[n_fixed : n_fixed + n_carried]):
            mine[i] = mine[i] or v in needed
    carries, stacks = mine[:n_carried], mine[n_carried:]
    rests = [not c for c in carries]
    direct = [True] * n_fixed + rests + [True] * len(scanned)
    parts = partition(jaxpr, mine, direct)
    n_mine, n_stacks = sum(carries), sum(stacks)

    def first(carry: Any, xs: Any) -> Any:
        filled = _join(carries, carry, select(carried, rests))  # the second part's are ignored
        results = jaxpr_as_fun(parts.first)(*fixed, *filled, *xs)
        return results[:n_mine], results[n_mine:]

    def second(carry: Any, xs: Any) -> Any:
        residuals, xs = xs
        results = jaxpr_as_fun(parts.second)(*residuals, *fixed, *carry, *xs)
        n = len(results) - (len(stacks) - n_stacks)
        return results[:n], results[n:]

    carry, found = jax.lax.scan(first, select(carried, carries), scanned, **how)
    residuals = found[n_stacks:]
    rest, rest_found = jax.lax.scan(second, select(carried, rests), (residuals, scanned), **how)
    return [*_join(carries, carry, rest), *_join(stacks, found[:n_stacks], rest_found)]


def _take_in(jaxpr: Any) -> Any:
    """Return a program with its constants as its first inputs."""
    return part(jaxpr, [*jaxpr.constvars, *jaxpr.invars], jaxpr.outvars, jaxpr.eqns)


def _split_cond(eqn: Any, args: Arrays, ours: Flags) -> Arrays:
    """Split a conditional in two; residuals of different branches share slots of the same type."""
    index, *operands = args
    pieces = []
    for branch in read_branches(eqn):
        jaxpr, consts = open_jaxpr(branch), list(getattr(branch, "consts", ()))
        parts = partition(_take_in(jaxpr), ours, [True] * (len(consts) + len(operands)))
        pieces.append((consts, parts))
    n = sum(ours)
    slots: list[Any] = []  # the types of the residuals, each as often as the branch that needs most of them
    places = []
    for _, parts in pieces:
        free, place = list(range(len(slots))), []
        for aval in parts.residuals:
            at = next((i for i in free if slots[i] == aval), None)
            if at is None:
                at = len(slots)
                slots.append(aval)
            else:
                free.remove(at)
            place.append(at)
        places.append(place)

    def make_first(consts: Arrays, parts: Partitioned, place: list[int]) -> Callable[..., Any]:
        def first(*operands: Any) -> Any:
            results = jaxpr_as_fun(parts.first)(*consts, *operands)
            residuals = dict(zip(place, results[n:], strict=True))
            return results[:n], [residuals[i] if i in residuals else ad.zeros_like_aval(a) for i, a in enumerate(slots)]

        return first

    def make_second(consts: Arrays, parts: Partitioned, place: list[int]) -> Callable[..., Any]:
        return lambda residuals, *operands: jaxpr_as_fun(parts.second)(
            *(residuals[i] for i in place), *consts, *operands
        )

    if any(jnp.issubdtype(aval.dtype, jax.dtypes.extended) for aval in slots):  # a PRNG key has no zero
        return list(eqn.primitive.bind(*args, **eqn.params))
    made = [(*piece, place) for piece, place in zip(pieces, places, strict=True)]
    mine, residuals = jax.lax.switch(index, [make_first(*m) for m in made], *operands)
    theirs = jax.lax.switch(index, [make_second(*m) for m in made], residuals, *operands)
    return _join(ours, mine, theirs)


def _split_shard_map(eqn: Any, args: Arrays, ours: Flags) -> Arrays:
    """Split a shard_map in two; residuals leave the first with a new axis over the mesh axes on which they vary."""
    n, (jaxpr, in_specs, out_specs, axes, how) = sum(ours), read_shard_map(eqn)
    found: list[Partitioned] = []

    def probe(*xs: Any) -> Any:
        found.append(partition(jaxpr, ours, [True] * len(args), list(map(jax.typeof, xs))))
        return tuple(jaxpr_as_fun(found[0].first)(*xs)[:n])

    mine_specs = tuple(select(out_specs, ours))
    jax.eval_shape(jax.shard_map(probe, in_specs=in_specs, out_specs=mine_specs, **how), *args)
    parts = found[0]
    over = [[a for a in axes if not how["check_vma"] or a in varying(p)] for p in parts.residuals]
    residual_specs = [jax.P(tuple(names)) for names in over]

    def first(*xs: Any) -> Any:
        results = jaxpr_as_fun(parts.first)(*xs)
        return tuple(results[:n]), [x[None] for x in results[n:]]

    def second(residuals: Any, *xs: Any) -> Any:
        return tuple(jaxpr_as_fun(parts.second)(*(x[0] for x in residuals), *xs))

    mine, residuals = jax.shard_map(first, in_specs=in_specs, out_specs=(mine_specs, residual_specs), **how)(*args)
    theirs_specs = tuple(select(out_specs, [not o for o in ours]))
    theirs = jax.shard_map(second, in_specs=(residual_specs, *in_specs), out_specs=theirs_specs, **how)(
        residuals, *args
    )
    return _join(ours, mine, theirs)


_RULES: dict[str, Callable[[Any, Arrays, Flags], Arrays]] = {
    primitives.jit_p.name: _split_call,
    primitives.closed_call_p.name: _split_call,
    primitives.remat_p.name: _split_remat,
    primitives.scan_p.name: _split_scan,
    primitives.cond_p.name: _split_cond,
    "optimization_barrier": _split_barrier,
    "shard_map": _split_shard_map,
}
