"""Tracing a rule while the arrays that it captures are alive."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, get_args

import jax
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun
from jax.interpreters import ad

from fnjax._errors import FnjaxError
from fnjax._rule import Arrays, Kept, Linear, LinearMap, Needs, Rule, Run, Trouble, spread
from fnjax._tree import is_inexact


def trace(fun: Callable[..., Any], *args: Any) -> tuple[ClosedJaxpr, Arrays]:
    """Trace `fun`; return a jaxpr that captures nothing, over (captured arrays, leaves of args), and those arrays."""
    closed = jax.make_jaxpr(fun)(*args)
    captured = list(closed.consts)
    if captured:
        body = open_jaxpr(closed)
        closed = jax.make_jaxpr(lambda consts, args: jax.core.eval_jaxpr(body, consts, *jax.tree.leaves(args)))(
            captured, args
        )
    return closed, captured


def open_jaxpr(jaxpr: ClosedJaxpr) -> Any:
    return getattr(jaxpr, "jaxpr", jaxpr)  # one class instead of two since JAX 0.12


def trace_run(rule: Rule, needs: Needs, operands: Sequence[Any]) -> tuple[ClosedJaxpr, Arrays, tuple[int, Linear]]:
    """Trace `rule.run` to a jaxpr that gives outputs and intermediates; what it captured; (n_outputs, linear)."""
    runs: list[tuple[int, Linear]] = []

    def fun(*operands: Any) -> Arrays:
        run = rule.run(needs, *operands)
        runs.append((len(run.outputs), run.linear))
        return [*run.outputs, *run.intermediates]

    return *trace(fun, *operands), runs[-1]


class Frozen:
    """A rule traced whole, forward and backward, while the tracers that it captures are alive.

    Its operands are the captured arrays and then the operands of the rule. It is traced as if every operand that can
    be differentiated were: so that is what `needs_input_grad` says there.
    """

    def __init__(self, rule: Rule, operands: Sequence[Any]) -> None:
        # Built now: `rule` would keep the captured tracers alive.
        self.residual_name = rule.residual_name
        self._errors = {what: rule.error(what) for what in get_args(Trouble)}
        needs = tuple(map(is_inexact, operands))
        forward, by_forward, (self._n_outputs, linear) = trace_run(rule, needs, operands)
        self._forward = jaxpr_as_fun(forward)
        self._kept, self._differentiable = linear.kept, linear.differentiable
        results = forward.out_avals
        sources = {"operand": [jax.typeof(x) for x in operands], "output": results[: self._n_outputs]}
        sources["intermediate"] = results[self._n_outputs :]
        residuals = [sources[kept.source][kept.at] for kept in linear.kept]
        self._cotangents = [aval if d else None for aval, d in zip(results, linear.differentiable, strict=False)]
        self._tangents = [x.to_tangent_aval() if n else None for x, n in zip(sources["operand"], needs, strict=True)]
        self._pull, by_pull = freeze(linear.pull, residuals, self._cotangents)
        self._push, by_push = freeze(linear.push, residuals, self._tangents)
        self._derive = linear.derive
        self._captured = [*by_forward, *by_pull, *by_push]
        self._n_forward, self._n_pull, self._n_captured = len(by_forward), len(by_pull), len(self._captured)

    def release(self) -> Arrays:
        """Hand the captured arrays over; whoever keeps this rule keeps no tracer."""
        captured, self._captured = self._captured, []
        return captured

    batch = finish = None

    def captures_tracers(self) -> bool:
        return False

    def error(self, what: Trouble) -> FnjaxError:
        return self._errors[what]

    def run(self, needs: Needs, *operands: Any) -> Run:
        if any(needs[: self._n_captured]):
            raise self.error("closure")
        results = self._forward(*operands[: self._n_forward], *operands[self._n_captured :])
        shifted = [Kept(k.source, k.at + self._n_captured * (k.source == "operand")) for k in self._kept]
        captured = [Kept("operand", i) for i in range(self._n_forward, self._n_captured)]
        linear = Linear(
            (*captured, *shifted),
            self._differentiable,
            self._pull and self._run_pull,
            self._push and self._run_push,
            self._derive,
        )
        return Run(results[: self._n_outputs], results[self._n_outputs :], linear)

    def _run_pull(self, residuals: Sequence[Any], cotangents: Sequence[Any]) -> Arrays:
        assert self._pull is not None
        own = [*residuals[: self._n_pull], *residuals[self._n_captured - self._n_forward :]]
        return [None] * self._n_captured + self._pull(own, _filled(cotangents, self._cotangents))

    def _run_push(self, residuals: Sequence[Any], tangents: Sequence[Any]) -> Arrays:
        assert self._push is not None
        return self._push(residuals[self._n_pull :], _filled(tangents[self._n_captured :], self._tangents))


def _filled(values: Sequence[Any], avals: Sequence[Any]) -> Arrays:
    """The values without None: zeros where there can be a value, nothing where there cannot."""
    return [
        ad.zeros_like_aval(aval) if value is None else value
        for value, aval in zip(values, avals, strict=True)
        if aval is not None
    ]


def freeze(fun: LinearMap | None, residuals: Sequence[Any], given: Sequence[Any]) -> tuple[LinearMap | None, Arrays]:
    """Trace `pull` or `push` while the arrays that it captures are alive; these come first among its residuals then."""
    if fun is None:
        return None, []
    traced: LinearMap = fun
    present: list[bool] = []

    def without_none(residuals: Arrays, given: Arrays) -> Arrays:
        results = traced(residuals, given)
        present[:] = [x is not None for x in results]
        return [x for x in results if x is not None]

    try:
        jaxpr, captured = trace(without_none, residuals, given)
    except Exception as e:  # noqa: BLE001 - whatever the user's method raises, it is due when somebody differentiates
        error = e.with_traceback(None)

        def fail(residuals: Sequence[Any], given: Sequence[Any]) -> Arrays:
            raise error

        return fail, []

    def frozen(residuals: Sequence[Any], given: Sequence[Any]) -> Arrays:
        return spread(jaxpr_as_fun(jaxpr)(*residuals, *given), present)

    return frozen, captured
