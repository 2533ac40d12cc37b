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


def partition_program(program: Any, in_first: Flags, direct: Flags, avals: Sequence[Any] | None = None) -> Partitioned:
    """Partition a program that captures nothing, through its loops and branches.

    Args:
        program: inputs → results.
        in_first: the results that the first part computes.
        direct: the inputs that the second part receives directly.
        avals: the types of the inputs, if they differ from those of the program.
    """
    jaxpr = open_jaxpr(program)
    traced = trace("parts", lambda *xs: _evaluate(jaxpr, (), xs, in_first), *(avals or (v.aval for v in jaxpr.invars)))
    # The new loops and branches take more operands than they need.
    jaxpr, _ = dce_jaxpr(open_jaxpr(traced.jaxpr), [True] * len(in_first), instantiate=True)
    return partition_equations(jaxpr, in_first, direct)


def _evaluate(jaxpr: Any, consts: Sequence[Any], args: Sequence[Any], in_first: Flags) -> Arrays:
    """Evaluate a program; an equation that both parts need is replaced by two."""
    needed = find_needed(jaxpr, in_first)
    used = find_needed(jaxpr, [True] * len(in_first))
    values = dict(zip([*jaxpr.constvars, *jaxpr.invars], [*consts, *args], strict=True))

    def read(atom: Any) -> Any:
        return values[atom] if variables([atom]) else jnp.asarray(atom.val, atom.aval.dtype)

    for eqn in jaxpr.eqns:
        first_needs = [v in needed for v in eqn.outvars]
        rule = _RULES.get(eqn.primitive.name)
        if rule and any(first_needs) and any(v in used and v not in needed for v in eqn.outvars):
            results = dict(zip(eqn.outvars, rule(eqn, list(map(read, eqn.invars)), first_needs), strict=True))
        else:
            inputs, outputs = list(dict.fromkeys(variables(eqn.invars))), [v for v in eqn.outvars if v in used]
            if not outputs and not eqn.effects:
                continue
            # By eval_jaxpr rather than bind, which keeps the equation's scopes and contexts.
            computed = jax.core.eval_jaxpr(part(jaxpr, inputs, outputs, [eqn]), (), *(values[v] for v in inputs))
            results = dict(zip(outputs, computed, strict=True))
        values.update(results)
    return list(map(read, jaxpr.outvars))


def _join(in_first: Flags, first: Sequence[Any], second: Sequence[Any]) -> Arrays:
    """Return the results of both parts in the order of the whole."""
    from_first, from_second = iter(first), iter(second)
    return [next(from_first) if f else next(from_second) for f in in_first]


def _split_call(eqn: Any, args: Arrays, in_first: Flags) -> Arrays:
    """Inline a call: the equations of its body are split one by one."""
    body = read_body(eqn)
    return _evaluate(open_jaxpr(body), getattr(body, "consts", ()), args, in_first)


def _split_barrier(eqn: Any, args: Arrays, in_first: Flags) -> Arrays:
    """Split an optimization barrier in two, since one would make each part depend on the other."""
    in_second = [not f for f in in_first]
    return _join(in_first, *(jax.lax.optimization_barrier(select(args, flags)) for flags in (in_first, in_second)))


def _split_remat(eqn: Any, args: Arrays, in_first: Flags) -> Arrays:
    """Recompute in the first part only; the second receives the residuals that it needs."""
    parts = partition_program(read_body(eqn), in_first, [True] * len(args))
    n = sum(in_first)
    results = bind_remat(eqn, parts.first, args)
    return _join(in_first, results[:n], jaxpr_as_fun(parts.second)(*results[n:], *args))


def _split_scan(eqn: Any, args: Arrays, in_first: Flags) -> Arrays:
    """Split a scan in two; the first stacks what the second needs of each iteration."""
    body, n_fixed, n_carried, options = read_scan(eqn)
    jaxpr, consts = open_jaxpr(body), getattr(body, "consts", ())
    fixed, carried, scanned = args[:n_fixed], args[n_fixed : n_fixed + n_carried], args[n_fixed + n_carried :]
    jaxpr = _constants_as_inputs(jaxpr)
    fixed, n_fixed = [*consts, *fixed], n_fixed + len(consts)
    in_first_body, before = list(in_first), None
    while in_first_body != before:  # what the first part carries, it needs from the previous iteration
        before = list(in_first_body)
        needed = find_needed(jaxpr, in_first_body)
        for i, v in enumerate(jaxpr.invars[n_fixed : n_fixed + n_carried]):
            in_first_body[i] = in_first_body[i] or v in needed
    carries, stacks = in_first_body[:n_carried], in_first_body[n_carried:]
    rests = [not c for c in carries]
    direct = [True] * n_fixed + rests + [True] * len(scanned)
    parts = partition_program(jaxpr, in_first_body, direct)
    n_carries, n_stacks = sum(carries), sum(stacks)

    def first(carry: Any, xs: Any) -> Any:
        filled = _join(carries, carry, select(carried, rests))  # the second part's are ignored
        results = jaxpr_as_fun(parts.first)(*fixed, *filled, *xs)
        return results[:n_carries], results[n_carries:]

    def second(carry: Any, xs: Any) -> Any:
        residuals, xs = xs
        results = jaxpr_as_fun(parts.second)(*residuals, *fixed, *carry, *xs)
        n = len(results) - (len(stacks) - n_stacks)
        return results[:n], results[n:]

    carry, stacked = jax.lax.scan(first, select(carried, carries), scanned, **options)
    residuals = stacked[n_stacks:]
    rest, rest_stacked = jax.lax.scan(second, select(carried, rests), (residuals, scanned), **options)
    return [*_join(carries, carry, rest), *_join(stacks, stacked[:n_stacks], rest_stacked)]


def _constants_as_inputs(jaxpr: Any) -> Any:
    """Return a program whose constants are its first inputs."""
    return part(jaxpr, [*jaxpr.constvars, *jaxpr.invars], jaxpr.outvars, jaxpr.eqns)


def _split_cond(eqn: Any, args: Arrays, in_first: Flags) -> Arrays:
    """Split a conditional in two; residuals of different branches share slots of the same type."""
    index, *operands = args
    pieces = []
    for branch in read_branches(eqn):
        jaxpr, consts = open_jaxpr(branch), list(getattr(branch, "consts", ()))
        parts = partition_program(_constants_as_inputs(jaxpr), in_first, [True] * (len(consts) + len(operands)))
        pieces.append((consts, parts))
    n = sum(in_first)
    slots: list[Any] = []  # the types of the residuals, each as often as the branch that needs most of them
    places = []
    for _, parts in pieces:
        free, place = list(range(len(slots))), []
        for aval in parts.residuals:
            slot = next((i for i in free if slots[i] == aval), None)
            if slot is None:
                slot = len(slots)
                slots.append(aval)
            else:
                free.remove(slot)
            place.append(slot)
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
    branches = [(*piece, place) for piece, place in zip(pieces, places, strict=True)]
    first_results, residuals = jax.lax.switch(index, [make_first(*b) for b in branches], *operands)
    second_results = jax.lax.switch(index, [make_second(*b) for b in branches], residuals, *operands)
    return _join(in_first, first_results, second_results)


def _split_shard_map(eqn: Any, args: Arrays, in_first: Flags) -> Arrays:
    """Split a shard_map in two; residuals leave the first with a new axis over the mesh axes on which they vary."""
    n, (jaxpr, in_specs, out_specs, axes, options) = sum(in_first), read_shard_map(eqn)
    partitions: list[Partitioned] = []

    def probe(*xs: Any) -> Any:
        partitions.append(partition_program(jaxpr, in_first, [True] * len(args), list(map(jax.typeof, xs))))
        return tuple(jaxpr_as_fun(partitions[0].first)(*xs)[:n])

    first_specs = tuple(select(out_specs, in_first))
    jax.eval_shape(jax.shard_map(probe, in_specs=in_specs, out_specs=first_specs, **options), *args)
    parts = partitions[0]
    over = [[a for a in axes if not options["check_vma"] or a in varying(p)] for p in parts.residuals]
    residual_specs = [jax.P(tuple(names)) for names in over]

    def first(*xs: Any) -> Any:
        results = jaxpr_as_fun(parts.first)(*xs)
        return tuple(results[:n]), [x[None] for x in results[n:]]

    def second(residuals: Any, *xs: Any) -> Any:
        return tuple(jaxpr_as_fun(parts.second)(*(x[0] for x in residuals), *xs))

    first_results, residuals = jax.shard_map(
        first, in_specs=in_specs, out_specs=(first_specs, residual_specs), **options
    )(*args)
    second_specs = tuple(select(out_specs, [not f for f in in_first]))
    second_results = jax.shard_map(second, in_specs=(residual_specs, *in_specs), out_specs=second_specs, **options)(
        residuals, *args
    )
    return _join(in_first, first_results, second_results)


_RULES: dict[str, Callable[[Any, Arrays, Flags], Arrays]] = {
    primitives.jit_p.name: _split_call,
    primitives.closed_call_p.name: _split_call,
    primitives.remat_p.name: _split_remat,
    primitives.scan_p.name: _split_scan,
    primitives.cond_p.name: _split_cond,
    "optimization_barrier": _split_barrier,
    "shard_map": _split_shard_map,
}
