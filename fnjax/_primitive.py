"""A function with a reverse rule of its own, as JAX primitives.

`jax.custom_vjp` keeps the structure of its residuals in one store per staged call and replaces it whenever the forward
rule is traced again for other perturbed inputs; a rule that saves what `needs_input_grad` asks for then meets
residuals of another pullback (docs/design.md shows it failing). Here every fact of a trace stands in the parameters of
an equation, so that nothing is shared:

    fnjax_call    operands → outputs (and, inside a derivative, the intermediates that were saved)
    fnjax_linear  residuals, tangents → tangents of the outputs; transposes into `backward`
    fnjax_wall    values → the same values, which must not be differentiated

The derivative of `fnjax_call` gets its outputs from `fnjax_call` again: so the second derivative of a saved output goes
through the custom rule too, also where JAX could not differentiate the body. A saved intermediate is an extra result,
whose derivative is that of the body.

This file knows JAX and rules on flat lists of arrays; it knows nothing of ctx or classes.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple, Protocol, get_args

import jax
from jax.extend.core import (
    ClosedJaxpr,
    Primitive,
    jaxpr_as_fun,
    set_current_trace,
    take_current_trace,
    unmapped_aval,
)
from jax.interpreters import ad, batching, mlir
from jax.interpreters.partial_eval import JaxprTracer, dce_jaxpr

from fnjax._errors import FnjaxError
from fnjax._tree import is_inexact, is_tracer, to_tensor

Arrays = list[Any]
Needs = tuple[bool, ...]
Pull = Callable[[Sequence[Any], Sequence[Any]], Arrays]


# What can go wrong below the line: a captured array is being differentiated; forward mode on a rule that has none; an
# intermediate that JAX cannot differentiate; a run that returned other outputs than the one before.
Trouble = Literal["closure", "forward mode", "intermediate", "outputs"]


class Kept(NamedTuple):
    """Where a residual comes from: the `at`-th operand, output or intermediate of the call."""

    source: Literal["operand", "output", "intermediate"]
    at: int


@dataclasses.dataclass(frozen=True, eq=False)
class Linear:
    """The derivative that one run of forward left behind; it holds no arrays.

    Attributes:
        kept: the residuals of `pull`.
        differentiable: for each output whether it carries a gradient.
        pull: (residuals, cotangents of all outputs or None) → gradients of all operands or None.
    """

    kept: tuple[Kept, ...]
    differentiable: tuple[bool, ...]
    pull: Pull


class Run(NamedTuple):
    """What one run of forward gives."""

    outputs: Arrays
    intermediates: Arrays
    linear: Linear


class Rule(Protocol):
    """A function on flat operands that says how it is run when some of them are differentiated."""

    def run(self, needs: Needs, *operands: Any) -> Run:
        """Run forward under the current trace; `needs` says which operands are being differentiated."""

    def captures_tracers(self) -> bool:
        """Whether forward or backward use arrays from outside that JAX is tracing."""

    def error(self, what: Trouble) -> FnjaxError:
        """The error to raise, in the user's words."""


class NeedsBodyError(Exception):
    """A call without a body met a trace that needs one; `call` traces the body and binds again."""


call_p = Primitive("fnjax_call")
call_p.multiple_results = True
linear_p = Primitive("fnjax_linear")
linear_p.multiple_results = True
wall_p = Primitive("fnjax_wall")
wall_p.multiple_results = True


def _lifetime() -> ClosedJaxpr:
    """A parameter without content for an equation whose other parameters belong to the user.

    JAX keeps what it learnt of an equation under its parameters, and lets go of them only when a jaxpr among them dies;
    without one, thousands of static arguments and the classes that they were passed to would stay in that cache.
    """
    return _empty_jaxpr().replace()  # type: ignore[no-any-return]  # untyped in JAX


@functools.cache
def _empty_jaxpr() -> ClosedJaxpr:
    return jax.make_jaxpr(lambda: ())()


def call(rule: Rule, operands: Sequence[Any]) -> Arrays:
    """Call `rule` on arrays of which some are being traced."""
    try:
        # Under un-jitted jax.grad the operands are concrete once the outer layer is off: no body is wanted, the
        # user's methods then run on arrays that they can print.
        return call_p.bind(  # type: ignore[no-any-return]  # a list, since it has multiple results
            *operands, rule=rule, jaxpr=None, n_outputs=0, n_closed=0, lifetime=_lifetime()
        )
    except NeedsBodyError:
        pass
    return call_staged(rule, operands)


def call_staged(rule: Rule, operands: Sequence[Any]) -> Arrays:
    """Call `rule` with its body traced here and now, where the arrays that it captures are alive."""
    return _staged_run(rule, (False,) * len(operands), operands).outputs


def _staged_run(rule: Rule, needs: Needs, operands: Sequence[Any]) -> Run:
    """Run a rule as an equation, with the arrays that it captures as operands."""
    jaxpr, closed, (n_outputs, linear) = _trace_run(rule, needs, operands)
    captured: Arrays = []
    if rule.captures_tracers() or any(map(is_tracer, closed)):
        # The rule will be run again where these tracers are dead, so it must not need them from outside.
        rule = frozen = _Frozen(rule, operands)
        captured = frozen.release()
    if captured:
        start, run = len(closed), jaxpr_as_fun(jaxpr)
        stop = start + len(captured)
        jaxpr = jax.make_jaxpr(lambda *xs: run(*xs[:start], *xs[stop:]))(*closed, *captured, *operands)
    try:
        results = call_p.bind(
            *closed,
            *captured,
            *operands,
            rule=rule,
            jaxpr=jaxpr,
            n_outputs=n_outputs,
            n_closed=len(closed),
            lifetime=_lifetime(),
        )
    except jax.errors.UnexpectedTracerError as e:
        raise rule.error("closure") from e
    return Run(results[:n_outputs], results[n_outputs:], linear)


def _trace(fun: Callable[..., Any], *args: Any) -> tuple[ClosedJaxpr, Arrays]:
    """Trace `fun`; return a jaxpr that captures nothing, over (captured arrays, leaves of args), and those arrays."""
    closed = jax.make_jaxpr(fun)(*args)
    captured = list(closed.consts)
    if captured:
        body = _open(closed)
        closed = jax.make_jaxpr(lambda consts, args: jax.core.eval_jaxpr(body, consts, *jax.tree.leaves(args)))(
            captured, args
        )
    return closed, captured


def _open(jaxpr: ClosedJaxpr) -> Any:
    return getattr(jaxpr, "jaxpr", jaxpr)  # one class instead of two since JAX 0.12


def _trace_run(rule: Rule, needs: Needs, operands: Sequence[Any]) -> tuple[ClosedJaxpr, Arrays, tuple[int, Linear]]:
    """Trace `rule.run` to a jaxpr that gives outputs and intermediates; what it captured; (n_outputs, linear)."""
    runs: list[tuple[int, Linear]] = []

    def fun(*operands: Any) -> Arrays:
        run = rule.run(needs, *operands)
        runs.append((len(run.outputs), run.linear))
        return [*run.outputs, *run.intermediates]

    return *_trace(fun, *operands), runs[-1]


class _Frozen:
    """A rule traced whole, forward and backward, while the tracers that it captures are alive.

    Its operands are the captured arrays and then the operands of the rule. It is traced as if every operand that can
    be differentiated were: so that is what `needs_input_grad` says there.
    """

    def __init__(self, rule: Rule, operands: Sequence[Any]) -> None:
        # Built now: `rule` would keep the captured tracers alive.
        self._errors = {what: rule.error(what) for what in get_args(Trouble)}
        needs = tuple(map(is_inexact, operands))
        forward, by_forward, (self._n_outputs, linear) = _trace_run(rule, needs, operands)
        self._forward = jaxpr_as_fun(forward)
        self._kept, self._differentiable = linear.kept, linear.differentiable
        results = forward.out_avals
        sources = {"operand": [jax.typeof(x) for x in operands], "output": results[: self._n_outputs]}
        sources["intermediate"] = results[self._n_outputs :]
        residuals = [sources[kept.source][kept.at] for kept in linear.kept]
        self._cotangents = [aval if d else None for aval, d in zip(results, linear.differentiable, strict=False)]
        has_gradient: list[bool] = []

        def backward(residuals: Arrays, cotangents: Arrays) -> Arrays:
            grads = linear.pull(residuals, cotangents)
            has_gradient[:] = [g is not None for g in grads]
            return [g for g in grads if g is not None]

        self._backward: Callable[..., Arrays] | Exception
        by_backward: Arrays = []
        try:
            jaxpr, by_backward = _trace(backward, residuals, self._cotangents)
            self._backward = jaxpr_as_fun(jaxpr)
        except Exception as e:  # noqa: BLE001 - whatever backward raises, it is due when somebody differentiates
            self._backward = e.with_traceback(None)
        self._has_gradient = has_gradient
        self._captured = [*by_forward, *by_backward]
        self._n_forward, self._n_captured = len(by_forward), len(self._captured)

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
        linear = Linear((*captured, *shifted), self._differentiable, self._pull)
        return Run(results[: self._n_outputs], results[self._n_outputs :], linear)

    def _pull(self, residuals: Sequence[Any], cotangents: Sequence[Any]) -> Arrays:
        if isinstance(self._backward, Exception):
            raise self._backward
        full = [
            ad.zeros_like_aval(aval) if ct is None else ct
            for ct, aval in zip(cotangents, self._cotangents, strict=True)
            if aval is not None
        ]
        grads = iter(self._backward(*residuals, *full))
        return [None] * self._n_captured + [next(grads) if has else None for has in self._has_gradient]


class _Batched:
    """A rule under `jax.vmap`: every output and intermediate is batched along axis 0."""

    def __init__(self, rule: Rule, axis: Any, dims: Sequence[int | None]) -> None:
        self.captures_tracers, self.error = rule.captures_tracers, rule.error
        self._rule, self._axis, self._dims = rule, axis, dims

    def run(self, needs: Needs, *operands: Any) -> Run:
        linears: list[Linear] = []

        def run(operands: Sequence[Any]) -> tuple[Arrays, Arrays]:
            run = self._rule.run(needs, *operands)
            linears.append(run.linear)
            return run.outputs, run.intermediates

        outputs, intermediates = vmap(run, self._axis, (list(self._dims),))(list(operands))
        linear = linears[-1]
        dims = [self._dims[k.at] if k.source == "operand" else 0 for k in linear.kept]
        return Run(outputs, intermediates, batched(linear, self._axis, dims, self._dims))


def vmap(fun: Callable[..., Any], axis: Any, dims: tuple[Any, ...]) -> Callable[..., Any]:
    """`jax.vmap` over the axis that a batching rule was told of."""
    return jax.vmap(fun, dims, 0, axis_name=axis.name, axis_size=axis.size, spmd_axis_name=axis.spmd_name)


def batched(linear: Linear, axis: Any, dims: Sequence[int | None], operands: Sequence[int | None]) -> Linear:
    """A derivative under `jax.vmap`: residuals are batched as `dims` says, and operands as `operands` does."""

    def pull(residuals: Sequence[Any], cotangents: Sequence[Any]) -> Arrays:
        grads = vmap(linear.pull, axis, (list(dims), 0))(list(residuals), list(cotangents))
        return [
            None if g is None else g.sum(0) if dim is None else jax.numpy.moveaxis(g, 0, dim)
            for g, dim in zip(grads, operands, strict=True)
        ]

    return Linear(linear.kept, linear.differentiable, pull)


# ---------------------------------------------------------------------------------------------------------------------
# fnjax_call


def _call_impl(*operands: Any, rule: Rule, jaxpr: ClosedJaxpr | None, **_: Any) -> Arrays:
    if jaxpr is None:
        return rule.run((False,) * len(operands), *map(to_tensor, operands)).outputs
    return list(jaxpr_as_fun(jaxpr)(*operands))


def _call_abstract(*_: Any, jaxpr: ClosedJaxpr | None, **__: Any) -> tuple[Any, Any]:
    if jaxpr is None:
        raise NeedsBodyError
    return jaxpr.out_avals, jaxpr.effects


def _call_jvp(
    primals: Sequence[Any],
    tangents: Sequence[Any],
    *,
    rule: Rule,
    jaxpr: ClosedJaxpr | None,
    n_outputs: int,
    n_closed: int,
    lifetime: ClosedJaxpr,
) -> tuple[Arrays, Arrays]:
    needs = tuple(type(t) is not ad.Zero for t in tangents)
    if any(needs[:n_closed]):
        raise rule.error("closure")
    rule_needs = needs[n_closed:]
    with _primal_trace(tangents):
        # Un-jitted, JAX passes Python and NumPy numbers as they came; the user's methods see JAX arrays.
        operands = [to_tensor(x) for x in primals[n_closed:]]
        if any(map(is_tracer, operands)):
            run = _staged_run(rule, rule_needs, operands)
        else:
            run = rule.run(rule_needs, *operands)
    if jaxpr is not None and [_type(x) for x in run.outputs] != [_type(a) for a in jaxpr.out_avals[:n_outputs]]:
        raise rule.error("outputs")
    sources = {"operand": operands, "output": run.outputs, "intermediate": run.intermediates}
    residuals = [sources[kept.source][kept.at] for kept in run.linear.kept]
    differentiable = run.linear.differentiable
    avals = [jax.typeof(x).to_tangent_aval() for x in run.outputs]
    dense = iter(
        linear_p.bind(
            *residuals,
            *[t for t in tangents[n_closed:] if type(t) is not ad.Zero],
            linear=run.linear,
            needs=rule_needs,
            avals=tuple(a for a, d in zip(avals, differentiable, strict=True) if d),
            rule=rule,
            lifetime=_lifetime(),
        )
    )
    out_tangents = [next(dense) if d else ad.Zero(a) for a, d in zip(avals, differentiable, strict=True)]
    if jaxpr is None or len(jaxpr.out_avals) == n_outputs:
        return run.outputs, out_tangents
    saved, saved_tangents = _intermediates_jvp(rule, jaxpr, n_outputs, primals, tangents)
    return [*run.outputs, *saved], [*out_tangents, *saved_tangents]


@contextmanager
def _primal_trace(tangents: Sequence[Any]) -> Iterator[None]:
    """The trace to run forward under.

    When JAX linearizes, it runs jvp rules under a trace that is there to collect the linear part, and in which known
    values turn into tracers; forward belongs to the trace around it, where concrete arrays stay concrete.
    """
    if not any(isinstance(t, JaxprTracer) for t in tangents):
        yield
        return
    with take_current_trace() as trace, set_current_trace(trace.parent_trace):
        yield


def _type(value: Any) -> tuple[Any, Any]:
    return value.shape, value.dtype


def _intermediates_jvp(
    rule: Rule, jaxpr: ClosedJaxpr, n_outputs: int, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Arrays, Arrays]:
    """Values and tangents of the intermediates in `jaxpr`: JAX differentiates the operations that made them."""
    wanted = [i >= n_outputs for i in range(len(jaxpr.out_avals))]
    body, _ = dce_jaxpr(_open(jaxpr), wanted, instantiate=True)
    moving = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]

    def intermediates(*values: Any) -> Arrays:
        operands = list(primals)
        for i, value in zip(moving, values, strict=True):
            operands[i] = value
        return list(jax.core.eval_jaxpr(body, jaxpr.consts, *operands))

    try:
        values, dots = jax.jvp(intermediates, [primals[i] for i in moving], [tangents[i] for i in moving])
    except FnjaxError:
        raise
    except Exception as e:  # whatever JAX says of a callback or a kernel that has no derivative
        raise rule.error("intermediate") from e
    return values, [
        dot if is_inexact(value) else ad.Zero(jax.typeof(value).to_tangent_aval())
        for value, dot in zip(values, dots, strict=True)
    ]


def _call_batch(
    axis: Any,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    rule: Rule,
    jaxpr: ClosedJaxpr | None,
    n_outputs: int,
    n_closed: int,
    lifetime: ClosedJaxpr,
) -> tuple[Arrays, list[int]]:
    if jaxpr is None:
        raise NeedsBodyError
    run = vmap(lambda operands: jaxpr_as_fun(jaxpr)(*operands), axis, (list(dims),))
    results = call_p.bind(
        *operands,
        rule=_Batched(rule, axis, dims[n_closed:]),
        jaxpr=jax.make_jaxpr(lambda *operands: run(list(operands)))(*operands),
        n_outputs=n_outputs,
        n_closed=n_closed,
        lifetime=lifetime,
    )
    return results, [0] * len(results)


call_p.def_impl(_call_impl)
call_p.def_effectful_abstract_eval(_call_abstract)
ad.primitive_jvps[call_p] = _call_jvp
batching.fancy_primitive_batchers[call_p] = _call_batch
mlir.register_lowering(
    call_p, mlir.lower_fun(lambda *operands, jaxpr, **_: jaxpr_as_fun(jaxpr)(*operands), multiple_results=True)
)


# ---------------------------------------------------------------------------------------------------------------------
# fnjax_linear


def _linear_transpose(cotangents: Sequence[Any], *args: Any, linear: Linear, needs: Needs, **_: Any) -> list[Any]:
    n_residuals = len(linear.kept)
    tangents = args[n_residuals:]
    grads: Sequence[Any] = [None] * len(needs)
    if any(type(ct) is not ad.Zero for ct in cotangents):
        given = iter(cotangents)
        full = [next(given) if d else None for d in linear.differentiable]
        full = [None if ct is None or type(ct) is ad.Zero else to_tensor(ct) for ct in full]
        grads = linear.pull([to_tensor(x) for x in args[:n_residuals]], full)
    wanted = [grad for grad, need in zip(grads, needs, strict=True) if need]
    return [None] * n_residuals + [
        ad.Zero(t.aval.to_ct_aval()) if grad is None else grad for grad, t in zip(wanted, tangents, strict=True)
    ]


def _linear_batch(
    axis: Any,
    args: Sequence[Any],
    dims: Sequence[int | None],
    *,
    linear: Linear,
    needs: Needs,
    avals: Any,
    rule: Rule,
    lifetime: ClosedJaxpr,
) -> tuple[Arrays, list[int]]:
    n_residuals = len(linear.kept)
    args = list(args)
    operands: list[int | None] = [None] * len(needs)
    moving = [i for i, need in enumerate(needs) if need]
    for at, operand in enumerate(moving, n_residuals):
        args[at] = batching.bdim_at_front(args[at], dims[at], axis.size)
        operands[operand] = 0
    tangents = linear_p.bind(
        *args,
        linear=batched(linear, axis, dims[:n_residuals], operands),
        needs=needs,
        avals=tuple(unmapped_aval(axis.size, 0, aval) for aval in avals),
        rule=rule,
        lifetime=lifetime,
    )
    return tangents, [0] * len(tangents)


def _linear_forward(*_: Any, rule: Rule, **__: Any) -> Any:
    raise rule.error("forward mode")


linear_p.def_impl(_linear_forward)
linear_p.def_abstract_eval(lambda *_, avals, **__: avals)
ad.primitive_transposes[linear_p] = _linear_transpose
ad.primitive_jvps[linear_p] = lambda primals, tangents, *, rule, **_: _linear_forward(rule=rule)
batching.fancy_primitive_batchers[linear_p] = _linear_batch
mlir.register_lowering(linear_p, lambda ctx, *_, rule, **__: _linear_forward(rule=rule))


# ---------------------------------------------------------------------------------------------------------------------
# fnjax_wall


def wall(values: Sequence[Any], depends_on: Sequence[Any], make_error: Callable[[], FnjaxError]) -> Arrays:
    """Return `values`; raise `make_error()` where they, or what they depend on, are differentiated."""
    return wall_p.bind(  # type: ignore[no-any-return]  # as above
        *values, *depends_on, n_values=len(values), make_error=make_error, lifetime=_lifetime()
    )


def _wall_jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, make_error: Callable[[], FnjaxError], **_: Any
) -> Any:
    raise make_error()


wall_p.def_impl(lambda *args, n_values, **_: list(args[:n_values]))
wall_p.def_abstract_eval(lambda *avals, n_values, **_: avals[:n_values])
ad.primitive_jvps[wall_p] = _wall_jvp
batching.primitive_batchers[wall_p] = lambda args, dims, *, n_values, **params: (
    wall_p.bind(*args, n_values=n_values, **params),
    dims[:n_values],
)
mlir.register_lowering(wall_p, lambda ctx, *args, n_values, **_: list(args[:n_values]))
