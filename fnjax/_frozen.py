"""Tracing a rule while the arrays that it captures are alive."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple, ParamSpec, TypeVar, get_args

import jax
from jax.extend import linear_util
from jax.extend.core import ClosedJaxpr, DebugInfo, jaxpr_as_fun, take_current_trace
from jax.interpreters import ad
from jax.interpreters.partial_eval import trace_to_jaxpr_dynamic

from fnjax._errors import FnjaxError
from fnjax._jax.rule import Arrays, Kept, Linear, LinearMap, Needs, Rule, Run, Traces, Trouble, spread, without_none
from fnjax._jax.trees import is_inexact, is_tracer

P = ParamSpec("P")
T = TypeVar("T")


def trace(name: str, fun: Callable[..., Any], *args: Any) -> tuple[ClosedJaxpr, Arrays]:
    """Trace `fun`; return a jaxpr that captures nothing, over (captured arrays, leaves of args), and those arrays."""
    leaves, tree = jax.tree.flatten(args)
    jaxpr, captured = _trace(name, lambda *leaves: fun(*jax.tree.unflatten(tree, leaves)), leaves)
    if captured:
        body, n = jaxpr, len(captured)
        jaxpr, _ = _trace(name, lambda *xs: jax.core.eval_jaxpr(body, xs[:n], *xs[n:]), [*captured, *leaves])
    return ClosedJaxpr(jaxpr, ()), captured


def _trace(name: str, fun: Callable[..., Any], leaves: Sequence[Any]) -> tuple[Any, Arrays]:
    """`jax.make_jaxpr` without its costs, which are several times those of a small Function."""
    info = DebugInfo("fnjax", name, tuple(f"array {i}" for i in range(len(leaves))), ())
    wrapped = linear_util.wrap_init(fun, debug_info=info)
    avals = [x if isinstance(x, jax.core.AbstractValue) else jax.typeof(x) for x in leaves]
    jaxpr, _, consts = trace_to_jaxpr_dynamic(wrapped, avals)
    return jaxpr, list(consts)


class Traced(NamedTuple):
    """What tracing `rule.run` gave.

    Attributes:
        jaxpr: (captured arrays, operands) → outputs and intermediates.
        captured: the arrays that forward captured.
        n_outputs: how many outputs there are.
        linear: the derivative.
        form: what else the rule has to say of its outputs.
    """

    jaxpr: ClosedJaxpr
    captured: Arrays
    n_outputs: int
    linear: Linear
    form: Any


def trace_run(rule: Rule, needs: Needs, operands: Sequence[Any]) -> Traced:
    """Trace `rule.run`, or remember what it gave for operands of these types."""
    if rule.traces is None:
        return _trace_run(rule, needs, operands)
    runs = rule.traces.runs
    key = (needs, tuple(map(jax.typeof, operands)), _configuration())
    if key not in runs:
        traced = _recorded(_trace_run, rule.traces)(rule, needs, operands)
        if any(map(is_tracer, traced.captured)):
            return traced
        pull, push = traced.linear.pull, traced.linear.push
        linear = dataclasses.replace(
            traced.linear, pull=pull and _SharedPull(pull, rule), push=push and _recorded(push, rule.traces)
        )
        runs[key] = traced = traced._replace(linear=linear)
    return runs[key]  # type: ignore[no-any-return]  # of Hashable → Any


def _trace_run(rule: Rule, needs: Needs, operands: Sequence[Any]) -> Traced:
    facts: list[tuple[int, Linear, Any]] = []

    def fun(*operands: Any) -> Arrays:
        run = rule.run(needs, *operands)
        facts.append((len(run.outputs), run.linear, run.form))
        return [*run.outputs, *run.intermediates]

    jaxpr, captured = trace(f"{rule.name}.forward", fun, *operands)
    return Traced(jaxpr, captured, *facts[-1])


_NOTHING = linear_util.wrap_init(lambda: None, debug_info=DebugInfo("fnjax", "", (), ()))


class _Configuration:
    """Stands for all that decides, besides a rule and its operands, what tracing gives: precision, mesh, named axes."""

    canonical: _Configuration | None = None


@linear_util.cache
def _token(_: linear_util.WrappedFun) -> _Configuration:
    return _Configuration()


def _configuration() -> _Configuration:
    """The configuration as JAX counts it, except that its two ways to say that there is no mesh are one."""
    found: _Configuration = _token(_NOTHING)
    if found.canonical is None:
        with jax.sharding.use_abstract_mesh(jax.sharding.get_abstract_mesh()):
            found.canonical = _token(_NOTHING)
    return found.canonical


# What is being traced for calls to share: it depends on what is called meanwhile.
_recording: ContextVar[Traces | None] = ContextVar("_recording", default=None)


def record_use(program: Any) -> None:
    """Note a call in what is being traced; None for one that nothing is remembered of."""
    traces = _recording.get()
    if traces is not None and not any(program is p for p in traces.uses):
        traces.uses.append(program)


def _recorded(fun: Callable[P, T], traces: Traces) -> Callable[P, T]:
    """`fun`, what it calls being recorded as used by what `traces` remembers."""

    def recorded(*args: P.args, **kwargs: P.kwargs) -> T:
        token = _recording.set(traces)
        try:
            return fun(*args, **kwargs)
        finally:
            _recording.reset(token)

    return recorded


class _SharedPull:
    """The `pull` of a rule that several calls share: traced once for all of them, run as it is for a single one."""

    def __init__(self, pull: LinearMap, rule: Rule) -> None:
        assert rule.traces is not None
        self._pull, self._traces, self.__name__ = _recorded(pull, rule.traces), rule.traces, f"{rule.name}_backward"

    def __call__(self, residuals: Sequence[Any], cotangents: Sequence[Any]) -> Arrays:
        if self._traces.calls > 1 and outermost_trace() is not None:
            return self._jitted(residuals, cotangents)
        return self._pull(residuals, cotangents)

    @functools.cached_property
    def _jitted(self) -> LinearMap:
        def backward(residuals: Sequence[Any], cotangents: Sequence[Any]) -> Arrays:
            return pull(residuals, cotangents)

        pull = self._pull  # not self: JAX forgets a function's traces when it dies, and they must not keep it alive
        backward.__name__ = backward.__qualname__ = self.__name__
        return jax.jit(backward)


def outermost_trace() -> Any:
    """The trace of the whole program that JAX is making; None where what is called now runs at once."""
    found, staging = None, _staging_trace()
    with take_current_trace() as current:
        trace = current
    while trace is not None:
        if type(trace) is staging:
            found = trace
        trace = getattr(trace, "parent_trace", None)
    return found


@functools.cache
def _staging_trace() -> type:
    types: list[type] = []

    def look() -> Arrays:
        with take_current_trace() as trace:
            types.append(type(trace))
        return []

    _trace("look", look, [])
    return types[0]


class Frozen:
    """A rule traced whole, forward and backward, while the tracers that it captures are alive.

    Its operands are the captured arrays and then the operands of the rule. It is traced as if every operand that can
    be differentiated were: so that is what `needs_input_grad` says there.
    """

    batch = finish = traces = None

    def __init__(self, rule: Rule, operands: Sequence[Any]) -> None:
        # Built now: `rule` would keep the captured tracers alive.
        self.name, self.residual_name = rule.name, rule.residual_name
        self._errors = {what: rule.error(what) for what in get_args(Trouble)}
        needs = tuple(map(is_inexact, operands))
        forward, by_forward, self._n_outputs, linear, _ = trace_run(rule, needs, operands)
        self._forward = jaxpr_as_fun(forward)
        self._kept, self._differentiable = linear.kept, linear.differentiable
        results = forward.out_avals
        sources = {"operand": [jax.typeof(x) for x in operands], "output": results[: self._n_outputs]}
        sources["intermediate"] = results[self._n_outputs :]
        residuals = [sources[kept.source][kept.at] for kept in linear.kept]
        self._cotangents = [aval if d else None for aval, d in zip(results, linear.differentiable, strict=False)]
        self._tangents = [x.to_tangent_aval() if n else None for x, n in zip(sources["operand"], needs, strict=True)]
        self._pull, by_pull = freeze(f"{self.name}.backward", linear.pull, residuals, self._cotangents)
        self._push, by_push = freeze(f"{self.name}.jvp", linear.push, residuals, self._tangents)
        self._derive = linear.derive
        self._captured = [*by_forward, *by_pull, *by_push]
        self._n_forward, self._n_pull, self._n_captured = len(by_forward), len(by_pull), len(self._captured)

    def release(self) -> Arrays:
        """Hand the captured arrays over; whoever keeps this rule keeps no tracer."""
        captured, self._captured = self._captured, []
        return captured

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


def freeze(
    name: str, fun: LinearMap | None, residuals: Sequence[Any], given: Sequence[Any]
) -> tuple[LinearMap | None, Arrays]:
    """Trace `pull` or `push` while the arrays that it captures are alive; these come first among its residuals then."""
    if fun is None:
        return None, []
    traced, present = without_none(fun)
    try:
        jaxpr, captured = trace(name, traced, residuals, given)
    except Exception as e:  # noqa: BLE001 - whatever the user's method raises, it is due when somebody differentiates
        error = e.with_traceback(None)

        def fail(residuals: Sequence[Any], given: Sequence[Any]) -> Arrays:
            raise error

        return fail, []

    def frozen(residuals: Sequence[Any], given: Sequence[Any]) -> Arrays:
        return spread(jaxpr_as_fun(jaxpr)(*residuals, *given), present)

    return frozen, captured
