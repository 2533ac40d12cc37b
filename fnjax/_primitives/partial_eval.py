"""Partial evaluation of fnjax_call, of which JAX by itself sees one operation, known or unknown as a whole.

A scan keeps once, not once for each step, what is computed of operands that do not vary, and policies of jax.checkpoint
select operations of the body. What is left is a call with the same rule, which derivatives of higher order need:

    body    closed-over arrays, operands            → outputs, intermediates
    known   those of them that are known            → values
    staged  closed-over arrays, values, operands    → outputs, intermediates

The values are intermediates: their derivative is that of the body. The outputs stay with the rule.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence
from typing import Any

import jax
from jax.ad_checkpoint import checkpoint_name
from jax.extend import linear_util
from jax.extend.core import ClosedJaxpr, DropVar, Primitive, Var, jaxpr_as_fun
from jax.interpreters.partial_eval import (
    custom_partial_eval_rules,
    partial_eval_jaxpr_custom_rules,
    trace_to_jaxpr_nounits,
)

from fnjax._primitives.jax_equations import change_to_call, split_call
from fnjax._primitives.jax_internals import as_call, has_effects, memory_of, open_jaxpr
from fnjax._primitives.memory_moves import move_to
from fnjax._primitives.rule import (
    Arrays,
    Body,
    Derivative,
    DerivedRule,
    ForwardResult,
    Needs,
    ResidualSource,
    Rule,
    behind,
)
from fnjax._primitives.trace import trace
from fnjax._primitives.tree import is_ref
from fnjax._primitives.types import Aval, Eqn


class WithValues(DerivedRule):
    """Rule with values in front of its operands that its body, or its derivative, need not compute of the operands.

    Args:
        rule: the rule.
        n: the number of values; they have no gradient.
        derivative: a derivative of `rule` whose residuals they are; without one, forward runs again for it.
    """

    def __init__(self, rule: Rule, n: int, derivative: Derivative | None = None) -> None:
        super().__init__(rule)
        self.has_vmap, self.finishes, self.n_values = rule.has_vmap, rule.finishes and derivative is None, n
        self.linear_in = (*([False] * n), *rule.linear_in) if rule.linear_in else ()
        sources = tuple(ResidualSource("operand", i) for i in range(n))
        self._derivative = derivative and dataclasses.replace(behind(n, derivative), sources=sources)

    def forward(self, needs: Needs, operands: Sequence[Any]) -> ForwardResult:
        """Run forward, for its outputs only if there is a derivative."""
        needs, operands = needs[self.n_values :], operands[self.n_values :]
        if self._derivative is None:
            return self._with_values(self.rule.forward(needs, operands))
        return ForwardResult(self.rule.forward((False,) * len(needs), operands).outputs, [], self._derivative)

    def finish(self, needs: Needs, operands: Sequence[Any], outputs: Arrays) -> ForwardResult:
        return self._with_values(self.rule.finish(needs[self.n_values :], operands[self.n_values :], outputs))

    def _with_values(self, result: ForwardResult) -> ForwardResult:
        return result._replace(derivative=behind(self.n_values, result.derivative))

    def vmap(
        self, size: int, operands: Sequence[Any], dims: Sequence[int | None], avals: Sequence[Aval]
    ) -> tuple[Arrays, list[int | None]]:
        return self.rule.vmap(size, operands[self.n_values :], dims[self.n_values :], avals)


def partially_evaluated(primitive: Primitive) -> None:
    """Let JAX partially evaluate the equations of a primitive that has the parameters `rule` and `body`."""
    custom_partial_eval_rules[primitive] = functools.partial(_evaluate_known, primitive)
    partial_eval_jaxpr_custom_rules[primitive] = _apply_policy


def _evaluate_known(primitive: Primitive, here: Any, *tracers: Any, body: Body | None, **params: Any) -> Arrays:
    """Evaluate now what the body computes of known operands only; stage the rest."""
    known = [t.is_known() for t in tracers]
    usual = functools.partial(here.default_process_primitive, primitive, tracers, {"body": body, **params})
    # A class with a batching rule has none for single operations.
    if body is None or all(known) or params["rule"].has_vmap or _is_indivisible(body):
        return usual()  # type: ignore[no-any-return]
    jaxpr = open_jaxpr(body.jaxpr)
    run = linear_util.wrap_init(jaxpr_as_fun(body.jaxpr), debug_info=jaxpr.debug_info)
    instantiate = [i < body.n_outputs for i in range(len(jaxpr.outvars))]
    rest, results, constants = trace_to_jaxpr_nounits(run, [t.pval for t in tracers], instantiate)
    # Its constants are values that were computed, and known operands, which the staged call has anyway.
    variables = [*rest.constvars, *rest.invars]  # since JAX 0.12 the constants come first among the latter
    unknown = iter(variables[len(constants) :])
    invars = [v if k else next(unknown) for v, k in zip(jaxpr.invars, known, strict=True)]
    places = {id(t.pval.get_known()): i for i, t in enumerate(tracers) if known[i]}
    values = {}
    for var, constant in zip(variables, constants, strict=False):
        if (i := places.pop(id(constant), None)) is None:
            values[var] = constant
        else:
            invars[i] = var
    if not values and not any(r.is_known() for r in results):
        return usual()  # type: ignore[no-any-return]
    operands = _insert([*values.values()], tracers, body)
    params = _stage(body, params, rest, [*values], invars, rest.outvars)
    staged = iter(here.default_process_primitive(primitive, operands, params))
    return [r.get_known() if r.is_known() else next(staged) for r in results]


def _apply_policy(policy: Any, unknown: Sequence[bool], instantiated: Sequence[bool], eqn: Eqn) -> tuple[Any, ...]:
    """Return an equation for the first computation under jax.checkpoint, one for the recomputation, and what is saved.

    These are the results of a rule in `partial_eval_jaxpr_custom_rules`.
    """
    body, n_results = eqn.params["body"], len(eqn.outvars)
    operands = [x for x, i in zip(eqn.invars, instantiated, strict=True) if not i and isinstance(x, Var)]
    if any(unknown):
        return None, eqn, [True] * n_results, [True] * n_results, operands
    known = [False] * n_results
    if _is_indivisible(body):  # what has effects is not computed again
        return eqn, None, known, known, []
    first, results, second, values, recomputed = split_call(eqn, policy)
    if not any(recomputed):
        return eqn, None, known, recomputed, []
    results = [Var(v.aval) if isinstance(v, DropVar) else v for v in results]
    rest, n = open_jaxpr(second), len(values)
    inner, outvars, binders = rest.invars[:n], [], []
    recomputed_results = iter(rest.outvars)
    for i in range(n_results):
        if recomputed[i]:
            outvars.append(next(recomputed_results))
            binders.append(eqn.outvars[i])
        elif i < body.n_outputs:  # a saved output; the staged call has all outputs
            values.append(results[i])
            inner.append(Var(results[i].aval))
            outvars.append(inner[-1])
            binders.append(Var(results[i].aval))
    if not values or eqn.params["rule"].has_vmap:  # the user's batching rule returns outputs only
        return eqn, eqn, known, [True] * n_results, operands
    staged = _stage(body, eqn.params, rest, inner, rest.invars[n:], outvars)
    return (
        eqn.replace(outvars=results, params={**eqn.params, **_replace_program(body, first, eqn.params)}),
        eqn.replace(invars=_insert(values, eqn.invars, body), outvars=binders, params=staged),
        known,
        recomputed,
        [*operands, *values],
    )


def save_residuals(policy: Any, unknown: Sequence[bool], instantiated: Sequence[bool], eqn: Eqn) -> tuple[Any, ...]:
    """Return for the derivative of a call what `_apply_policy` does for the call: its residuals have a name."""
    rule, derivative, n_results = eqn.params["rule"], eqn.params["derivative"], len(eqn.outvars)
    # Where every operation is saved, what is instantiated is an argument of jax.checkpoint, and available anyway.
    saves_everything = policy(eqn.primitive, *(x.aval for x in eqn.invars), **eqn.params) is True
    memory = memory_of(policy, rule.residual_name) if any(unknown) and not saves_everything else None
    named = [
        i
        for i, x in enumerate(eqn.invars[: len(derivative.sources)])
        # An array that is not instantiated is saved as it is.
        if memory is not None and instantiated[i] and not unknown[i] and isinstance(x, Var) and not is_ref(x.aval)
    ]
    operands = [x for x, i in zip(eqn.invars, instantiated, strict=True) if not i and isinstance(x, Var)]
    if not named:
        return None if any(unknown) else eqn, eqn, [any(unknown)] * n_results, [True] * n_results, operands

    def save(*arrays: Any) -> Arrays:
        return move_to(memory, [checkpoint_name(x, rule.residual_name) for x in arrays])

    arrays = [eqn.invars[i] for i in named]
    program = trace("residuals", save, *(x.aval for x in arrays)).jaxpr
    saved = [Var(aval) for aval in program.out_avals]
    invars = list(eqn.invars)
    for i, x in zip(named, saved, strict=True):
        invars[i] = x
    known = change_to_call(eqn, program, arrays, saved)
    params = {**eqn.params, "derivative": _from_memory(memory, derivative)}
    return known, eqn.replace(invars=invars, params=params), [True] * n_results, [True] * n_results, [*operands, *saved]


def _from_memory(memory: Any, derivative: Derivative) -> Derivative:
    """Return a derivative whose residuals are in a memory."""
    device, vjp, jvp = jax.memory.Space.Device, derivative.vjp, derivative.jvp
    if memory == device:
        return derivative
    return dataclasses.replace(
        derivative,
        vjp=vjp and (lambda residuals, cotangents: vjp(move_to(device, residuals), cotangents)),
        jvp=jvp and (lambda residuals, tangents: jvp(move_to(device, residuals), tangents)),
    )


def _is_indivisible(body: Body) -> bool:
    """Return whether a body must run as a whole, because it has effects or Refs."""
    return has_effects(open_jaxpr(body.jaxpr)) or any(map(is_ref, body.jaxpr.in_avals))


def _stage(
    body: Body,
    params: dict[str, Any],
    rest: Any,
    values: Sequence[Var],
    operands: Sequence[Var],
    results: Sequence[Any],
) -> dict[str, Any]:
    """Return the parameters of the call that remains: its program is `rest`, and `values` are operands as well."""
    jaxpr = rest.replace(constvars=[], invars=_insert(values, operands, body), outvars=list(results))
    rule = WithValues(params["rule"], len(values))
    return {**params, **_replace_program(body, ClosedJaxpr(jaxpr, ()), params), "rule": rule}


def _replace_program(body: Body, program: ClosedJaxpr, params: dict[str, Any]) -> dict[str, Any]:
    """Return the parameters of an equation that depend on its program, for another program."""
    return {"body": dataclasses.replace(body, jaxpr=program), **as_call(program, opened=params["opened"])}


def _insert(values: Sequence[Any], operands: Sequence[Any], body: Body) -> list[Any]:
    """Return values and operands in the order of the staged call, after the arrays that it closes over."""
    return [*operands[: body.n_closed_over], *values, *operands[body.n_closed_over :]]
