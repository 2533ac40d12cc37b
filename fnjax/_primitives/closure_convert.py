"""Closure conversion: rules that use outer tracers are traced in full while these are alive."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any, get_args

import jax
from jax.extend.core import jaxpr_as_fun
from jax.interpreters import ad

from fnjax._primitives.rule import (
    OPERATION,
    Arrays,
    Derivative,
    DerivedRule,
    ErrorKind,
    ForwardResult,
    LinearMap,
    Needs,
    ResidualSource,
    Rule,
    behind,
    unique,
)
from fnjax._primitives.sharding import call_sharded
from fnjax._primitives.trace import trace, trace_run
from fnjax._primitives.tree import is_inexact
from fnjax._primitives.types import Aval


def closure_convert(rule: Rule, operands: Sequence[Any]) -> tuple[Rule, Arrays, Derivative]:
    """Trace a rule, forward and backward, with the tracers that it closes over as operands (closure conversion).

    JAX may run a rule again when the trace of these has ended: a pullback of a jitted function, a scan's body. The rule
    is traced as if every operand that can be differentiated were, and `needs_input_grad` says so there.

    The arrays that forward, vjp and jvp close over are `by_forward`, `by_vjp` and `by_jvp`; `closed_over` has each of
    them once. Operands and residuals of the converted rule:

        operands       closed_over          operands of `rule`
        for forward    by_forward           operands of `rule`

        residuals      by_vjp    by_jvp     residuals of `rule`
        for vjp        by_vjp               residuals of `rule`
        for jvp                  by_jvp     residuals of `rule`

    Returns:
        A rule whose operands are the closed-over arrays followed by those of `rule`; the closed-over arrays; and the
        derivative of a run that counts them among the intermediates, after those of `rule`.
    """
    needs = tuple(map(is_inexact, operands))
    forward, by_forward, n_outputs, derivative = trace_run(rule, needs, operands)
    results = forward.out_avals
    types = {"operand": [jax.typeof(x) for x in operands], "output": results[:n_outputs]}
    types["intermediate"] = results[n_outputs:]
    residuals = [types[source.source][source.at] for source in derivative.sources]
    cotangents = [aval if d else None for aval, d in zip(results, derivative.differentiable, strict=False)]
    tangents = [x.to_tangent_aval() if n else None for x, n in zip(types["operand"], needs, strict=True)]
    grads = [x.to_ct_aval() if n else x for x, n in zip(types["operand"], needs, strict=True)]
    dots = [x.to_tangent_aval() for x in types["output"]]
    vjp, by_vjp = _close_map(rule, "backward", derivative.vjp, residuals, cotangents, grads)
    jvp, by_jvp = _close_map(rule, "jvp", derivative.jvp, residuals, tangents, dots)
    closed_over, indices = unique([*by_forward, *by_vjp, *by_jvp])  # a Ref must not appear twice
    n, n_by_vjp, n_by_maps = len(closed_over), len(by_vjp), len(by_vjp) + len(by_jvp)
    of_forward, of_maps = indices[: len(by_forward)], indices[len(by_forward) :]

    def run_vjp(residuals: Sequence[Any], cotangents: Sequence[Any]) -> Arrays:
        assert vjp is not None
        return vjp([*residuals[:n_by_vjp], *residuals[n_by_maps:]], cotangents)

    def run_jvp(residuals: Sequence[Any], tangents: Sequence[Any]) -> Arrays:
        assert jvp is not None
        return jvp(residuals[n_by_vjp:], tangents)

    by_maps = [ResidualSource("intermediate", len(results) - n_outputs + i) for i in of_maps]
    of_run = dataclasses.replace(
        derivative, sources=(*by_maps, *derivative.sources), vjp=vjp and run_vjp, jvp=jvp and run_jvp
    )
    # Of a later run of the converted rule they are operands.
    by_operands = [ResidualSource("operand", i) for i in of_maps]
    of_converted = behind(n, of_run)
    of_converted = dataclasses.replace(of_converted, sources=(*by_operands, *of_converted.sources[n_by_maps:]))

    def run(operands: Sequence[Any]) -> ForwardResult:
        results = jaxpr_as_fun(forward)(*(operands[i] for i in of_forward), *operands[n:])
        return ForwardResult(results[:n_outputs], results[n_outputs:], of_converted)

    return ClosureConverted(rule, run, n), closed_over, of_run


class ClosureConverted(DerivedRule):
    """Rule whose first operands are the arrays that another closes over; it keeps nothing of that rule alive."""

    def __init__(self, rule: Rule, run: Callable[[Sequence[Any]], ForwardResult], n_closed_over: int) -> None:
        self.name, self.residual_name, self._run = rule.name, rule.residual_name, run
        self.linear_in = (*([False] * n_closed_over), *rule.linear_in) if rule.linear_in else ()
        self._n_closed_over = n_closed_over
        self._errors = {kind: rule.error(kind) for kind in get_args(ErrorKind)}  # `rule` refers to closed-over tracers

    def forward(self, needs: Needs, operands: Sequence[Any]) -> ForwardResult:
        """Run the traced forward."""
        if any(needs[: self._n_closed_over]):  # closed-over arrays have no gradient
            raise self._errors["closure"]
        return self._run(operands)

    def error(self, kind: ErrorKind, operation: str = OPERATION) -> Exception:
        stored = self._errors[kind]
        if operation == OPERATION:
            return stored
        named = type(stored)(str(stored).replace(OPERATION, operation))
        for note in stored.__notes__:
            named.add_note(note)
        return named

    def operand_names(self) -> tuple[str, ...]:
        return ()


def _close_map(
    rule: Rule,
    method: str,
    fun: LinearMap | None,
    residuals: Sequence[Any],
    vector_types: Sequence[Aval | None],
    result_types: Sequence[Aval],
) -> tuple[LinearMap | None, Arrays]:
    """Trace `vjp` or `jvp`; the arrays that it closes over become its first residuals.

    An error that the user's method raises is stored and raised when the derivative is computed.
    """
    if fun is None:
        return None, []
    sharded = functools.partial(call_sharded, rule, fun, types=result_types)
    try:
        traced = trace(f"{rule.name}.{method}", sharded, list(residuals), list(vector_types))
    except Exception as e:  # noqa: BLE001 - any error of the user's method is raised when the call is differentiated
        error = e.with_traceback(None)

        def fail(residuals: Sequence[Any], vectors: Sequence[Any]) -> Arrays:
            raise error

        return fail, []
    jaxpr, closed_over, result = traced

    def run(residuals: Sequence[Any], vectors: Sequence[Any]) -> Arrays:
        # It was traced with a vector at each position that can have one.
        filled = [
            ad.zeros_like_aval(aval) if v is None else v
            for v, aval in zip(vectors, vector_types, strict=True)
            if aval is not None
        ]
        return list(result.unflatten(jaxpr_as_fun(jaxpr)(*residuals, *filled)))

    return run, closed_over
