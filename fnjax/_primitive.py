"""A function with a reverse rule of its own, as JAX primitives.

`jax.custom_vjp` keeps the structure of its residuals in one store per staged call and replaces it whenever the forward
rule is traced again for other perturbed inputs; a rule that saves what `needs_input_grad` asks for then meets
residuals of another pullback (docs/design.md shows it failing). Here every fact of a trace stands in the parameters of
an equation, so that nothing is shared:

    fnjax_call    operands → outputs (and, inside a derivative, the intermediates that were saved)
    fnjax_linear  residuals, tangents → tangents of the outputs; transposes into `backward`, and runs `jvp` or
                  the transpose of `backward`
    fnjax_wall    values → the same values, which must not be differentiated

The derivative of `fnjax_call` gets its outputs from `fnjax_call` again: so the second derivative of a saved output goes
through the custom rule too, also where JAX could not differentiate the body. A saved intermediate is an extra result,
whose derivative is that of the body.

This file knows JAX and rules on flat lists of arrays; it knows nothing of ctx or classes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import jax
import numpy as np
from jax.ad_checkpoint import checkpoint_name
from jax.extend.core import (
    ClosedJaxpr,
    Primitive,
    jaxpr_as_fun,
    jaxprs_in_params,
    set_current_trace,
    take_current_trace,
    unmapped_aval,
)
from jax.interpreters import ad, batching, mlir
from jax.interpreters.partial_eval import JaxprTracer, dce_jaxpr

from fnjax._batched import Batched, batched, vmap
from fnjax._errors import FnjaxError
from fnjax._frozen import Frozen, trace, trace_run
from fnjax._jax.linearity import adds_constant, hides_varying, varying
from fnjax._jax.rule import Arrays, Linear, LinearMap, Needs, Rule, Run, chosen, spread, without_none
from fnjax._jax.trees import is_inexact, is_tracer, to_tensor
from fnjax._jaxpr import open_jaxpr


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


def call(rule: Rule, operands: Sequence[Any], *, inner: bool) -> Arrays:
    """Call `rule` on arrays of which some are being traced; `inner` if the call stands inside a derivative."""
    with take_current_trace() as trace:
        pass
    if hasattr(trace, "tangent_trace"):
        return _linearize(trace, rule, operands, inner=inner)
    try:
        # Under un-jitted jax.grad the operands are concrete once the outer layer is off: no body is wanted, the
        # user's methods then run on arrays that they can print.
        return call_p.bind(  # type: ignore[no-any-return]  # a list, since it has multiple results
            *operands, rule=rule, jaxpr=None, n_outputs=0, n_closed=0, inner=inner, lifetime=_lifetime()
        )
    except NeedsBodyError:
        pass
    return call_staged(rule, operands, inner=inner)


def call_staged(rule: Rule, operands: Sequence[Any], *, inner: bool) -> Arrays:
    """Call `rule` with its body traced here and now, where the arrays that it captures are alive."""
    return staged_run(rule, (False,) * len(operands), operands, inner=inner).outputs


def staged_run(rule: Rule, needs: Needs, operands: Sequence[Any], *, inner: bool) -> Run:
    """Run a rule as an equation, with the arrays that it captures as operands; `inner` is for a run in a derivative."""
    finish = rule.finish if any(needs) else None
    traced = trace_run(rule, (False,) * len(needs) if finish else needs, operands)
    jaxpr, closed, n_outputs = traced.jaxpr, traced.captured, traced.n_outputs
    if any(needs) and _any_varies(map(jax.typeof, operands)) and hides_varying(open_jaxpr(jaxpr)):
        raise rule.error("varying callback")
    captured: Arrays = []
    if (rule.traces is None and rule.captures_tracers()) or any(map(is_tracer, closed)):
        # The rule will be run again where these tracers are dead, so it must not need them from outside.
        rule = frozen = Frozen(rule, operands)
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
            inner=inner,
            lifetime=_lifetime(),  # not that of jaxpr, which the rule may remember
        )
    except jax.errors.UnexpectedTracerError as e:
        raise rule.error("closure") from e
    if finish is not None:
        return finish(needs, operands, results, traced.form)
    return Run(results[:n_outputs], results[n_outputs:], traced.linear, traced.form)


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
    inner: bool,
    lifetime: ClosedJaxpr | None,
) -> tuple[Arrays, Arrays]:
    needs = tuple(type(t) is not ad.Zero for t in tangents)
    if any(needs[:n_closed]):
        raise rule.error("closure")
    rule_needs = needs[n_closed:]
    with _primal_trace(tangents):
        # Un-jitted, JAX passes Python and NumPy numbers as they came; the user's methods see JAX arrays.
        run, residuals = _run_for_derivative(rule, rule_needs, [to_tensor(x) for x in primals[n_closed:]])
    if jaxpr is not None and [_type(x) for x in run.outputs] != [_type(a) for a in jaxpr.out_avals[:n_outputs]]:
        raise rule.error("outputs")
    # jax.checkpoint differentiates by this rule, and its policies may go by the name; a concrete array needs none.
    residuals = [checkpoint_name(x, rule.residual_name) if is_tracer(x) else x for x in residuals]
    out_tangents = _tangents(run, residuals, rule_needs, tangents[n_closed:], rule, inner=inner)
    if jaxpr is None or len(jaxpr.out_avals) == n_outputs:
        return run.outputs, out_tangents
    saved, saved_tangents = _intermediates_jvp(rule, jaxpr, n_outputs, primals, tangents)
    return [*run.outputs, *saved], [*out_tangents, *saved_tangents]


def _run_for_derivative(rule: Rule, needs: Needs, operands: Sequence[Any]) -> tuple[Run, Arrays]:
    """Run a rule whose derivative is due; return its residuals as well."""
    run = None
    if not any(map(is_tracer, operands)) and not rule.captures_tracers():
        run = rule.run(needs, *operands)
    # Concrete operands and a traced result: forward has captured an array that belongs to a trace around this one.
    if run is None or any(map(is_tracer, (*run.outputs, *run.intermediates))):
        run = staged_run(rule, needs, operands, inner=True)
    sources = {"operand": operands, "output": run.outputs, "intermediate": run.intermediates}
    return run, [sources[kept.source][kept.at] for kept in run.linear.kept]


def _tangents(run: Run, residuals: Arrays, needs: Needs, tangents: Sequence[Any], rule: Rule, *, inner: bool) -> Arrays:
    """The tangents of the outputs: one equation, symbolic zeros where there is no derivative."""
    differentiable = run.linear.differentiable
    avals = [jax.typeof(x).to_tangent_aval() for x in run.outputs]
    dense = iter(())
    if any(differentiable):
        dense = iter(
            linear_p.bind(
                *residuals,
                *chosen(tangents, needs),
                linear=run.linear,
                needs=needs,
                avals=tuple(chosen(avals, differentiable)),
                rule=rule,
                derive=inner or run.linear.derive,
                lifetime=_lifetime(),
            )
        )
    return [next(dense) if d else ad.Zero(a) for a, d in zip(avals, differentiable, strict=True)]


def _linearize(trace: Any, rule: Rule, operands: Sequence[Any], *, inner: bool) -> Arrays:
    """Call `rule` where JAX linearizes: what JAX does with `_call_jvp`, without a trace of that alone."""
    needs = tuple(is_tracer(x) and getattr(x._trace, "tag", None) is trace.tag for x in operands)
    with set_current_trace(trace.parent_trace):
        if not any(needs):
            return call(rule, operands, inner=inner)
        primals = [to_tensor(x.primal) if n else x for x, n in zip(operands, needs, strict=True)]
        run, residuals = _run_for_derivative(rule, needs, primals)
    moving = chosen(operands, needs)
    with set_current_trace(trace.tangent_trace):
        given = spread([x.tangent for x in moving], needs)
        tangents = _tangents(run, residuals, needs, given, rule, inner=inner)
    make = type(moving[0])
    return [x if type(t) is ad.Zero else make(trace, x, t) for x, t in zip(run.outputs, tangents, strict=True)]


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
    """Values and tangents of the intermediates in `jaxpr`: JAX differentiates the operations that made them.

    What made integers alone is not differentiated: it may be a callback.
    """
    smooth = [is_inexact(a) for a in jaxpr.out_avals[n_outputs:]]

    def made(wanted: bool) -> Callable[..., Arrays]:
        body, _ = dce_jaxpr(open_jaxpr(jaxpr), [False] * n_outputs + [s == wanted for s in smooth], instantiate=True)
        return lambda *args: jax.core.eval_jaxpr(body, jaxpr.consts, *args)

    integers = iter([] if all(smooth) else made(False)(*primals))
    values, dots = iter(()), iter(())
    try:
        if any(smooth):
            values, dots = map(iter, _jvp(made(True), primals, tangents))
    except FnjaxError:
        raise
    except Exception as e:  # whatever JAX says of a callback or a kernel that has no derivative
        raise rule.error("intermediate") from e
    saved = [next(values if s else integers) for s in smooth]
    return saved, [
        next(dots) if s else ad.Zero(jax.typeof(x).to_tangent_aval()) for s, x in zip(smooth, saved, strict=True)
    ]


def _jvp(fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Arrays, Arrays]:
    """`jax.jvp` in the arguments whose tangents are not symbolic zeros."""
    moving = [type(t) is not ad.Zero for t in tangents]

    def of_moving(*values: Any) -> Arrays:
        given = iter(values)
        return list(fun(*[next(given) if m else x for m, x in zip(moving, primals, strict=True)]))

    return jax.jvp(of_moving, chosen(primals, moving), chosen(tangents, moving))


def _call_batch(
    axis: Any,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    rule: Rule,
    jaxpr: ClosedJaxpr | None,
    n_outputs: int,
    n_closed: int,
    inner: bool,
    lifetime: ClosedJaxpr | None,
) -> tuple[Arrays, list[int | None]]:
    if jaxpr is None:
        raise NeedsBodyError
    if all(dim is None for dim in dims) and not _names_axis(open_jaxpr(jaxpr), axis.name):
        results = call_p.bind(
            *operands, rule=rule, jaxpr=jaxpr, n_outputs=n_outputs, n_closed=n_closed, inner=inner, lifetime=lifetime
        )
        return results, [None] * len(results)
    if rule.batch is not None:
        if len(jaxpr.out_avals) > n_outputs:
            raise rule.error("vmap intermediate")
        return rule.batch(axis.size, operands[n_closed:], dims[n_closed:], jaxpr.out_avals)
    run = vmap(lambda operands: jaxpr_as_fun(jaxpr)(*operands), axis, (list(dims),))
    results = call_p.bind(
        *operands,
        rule=Batched(rule, axis, dims[n_closed:]),
        jaxpr=jax.make_jaxpr(lambda *operands: run(list(operands)))(*operands),
        n_outputs=n_outputs,
        n_closed=n_closed,
        inner=inner,
        lifetime=lifetime,
    )
    return results, [0] * len(results)


def _names_axis(jaxpr: Any, name: Any) -> bool:
    """Whether a collective in `jaxpr` speaks of the axis `name`."""
    return any(
        any(
            _is_axis(p, name) for param in eqn.params.values() for p in (param if isinstance(param, tuple) else [param])
        )
        or any(_names_axis(sub, name) for sub in jaxprs_in_params(eqn.params))
        for eqn in jaxpr.eqns
    )


def _is_axis(param: Any, name: Any) -> bool:
    return type(param) is type(name) and bool(param == name)  # other parameters may have no == that answers


def _call_transpose(
    cotangents: Sequence[Any],
    *operands: Any,
    rule: Rule,
    jaxpr: ClosedJaxpr,
    **_: Any,
) -> list[Any]:
    """The transpose in operands in which the call is linear: a backward that calls a Function on grad_output.

    It is that of the operations of forward: only these can show that they are linear, and a rule that is not their
    derivative has no say in it. For the same reason it must not be differentiated further.
    """
    linear = [ad.is_undefined_primal(x) for x in operands]

    def fun(*vectors: Any) -> Arrays:
        given = iter(vectors)
        filled = [next(given) if u else x for x, u in zip(operands, linear, strict=True)]
        return list(jaxpr_as_fun(jaxpr)(*filled))

    types = [x.aval for x in chosen(operands, linear)]
    grads = _transpose(fun, types, [ad.instantiate_zeros(ct) for ct in cotangents], rule)
    others = [x for x, u in zip(operands, linear, strict=True) if not u]
    return spread(wall(grads, others, lambda: rule.error("not linear")), linear)


def _call_lowering(ctx: mlir.LoweringRuleContext, *operands: Any, rule: Rule, jaxpr: ClosedJaxpr, **_: Any) -> Any:
    return mlir.core_call_lowering(ctx, *operands, name=rule.name, call_jaxpr=jaxpr)


call_p.def_impl(_call_impl)
call_p.def_effectful_abstract_eval(_call_abstract)
ad.primitive_jvps[call_p] = _call_jvp
ad.primitive_transposes[call_p] = _call_transpose
batching.fancy_primitive_batchers[call_p] = _call_batch
mlir.register_lowering(call_p, _call_lowering)


# ---------------------------------------------------------------------------------------------------------------------
# fnjax_linear


def _linear_transpose(
    cotangents: Sequence[Any], *args: Any, linear: Linear, needs: Needs, avals: Sequence[Any], rule: Rule, **_: Any
) -> list[Any]:
    n_residuals = len(linear.kept)
    residuals, tangents = _held([to_tensor(x) for x in args[:n_residuals]]), args[n_residuals:]
    grads: Sequence[Any] = [None] * len(tangents)
    if any(type(ct) is not ad.Zero for ct in cotangents):
        if linear.pull is not None:
            given = [None if type(ct) is ad.Zero else to_tensor(ct) for ct in cotangents]
            pull = _dense(linear.pull, residuals, linear.differentiable, needs)
            grads = _pull_summed(pull, given, avals, [t.aval for t in tangents], rule)
        else:
            push = _dense(linear.push, residuals, needs, linear.differentiable)
            given = [ad.instantiate_zeros(ct) for ct in cotangents]
            grads = _transpose(push, [t.aval for t in tangents], given, rule)
    return [None] * n_residuals + [
        ad.Zero(t.aval.to_ct_aval()) if grad is None else grad for grad, t in zip(grads, tangents, strict=True)
    ]


def _held(residuals: Arrays) -> Arrays:
    """The residuals behind a barrier: what backward computes from them again is not merged with what forward computed.

    Without it XLA keeps these values instead, and nothing is saved by recomputing (docs/guides/saving-and-memory.md).
    """
    traced = [is_tracer(x) for x in residuals]
    held = iter(jax.lax.optimization_barrier(chosen(residuals, traced)) if any(traced) else [])
    return [next(held) if t else x for x, t in zip(residuals, traced, strict=True)]


def _pull_summed(
    pull: Callable[..., Arrays], cotangents: Sequence[Any], outputs: Sequence[Any], arguments: Sequence[Any], rule: Rule
) -> Arrays:
    """Call `pull`, and inside shard_map sum each gradient over the mesh axes on which its argument does not vary.

    There the cotangent of an output that does not vary is a total, and that of one that varies is a share. A gradient
    that may be made of both is refused: only the part of the shares is to be summed, and nobody can tell them apart.
    """
    if jax.sharding.get_abstract_mesh().empty:  # as it is outside of shard_map
        return pull(*cotangents)
    grads = (_checked(pull, rule) if _any_varies([*outputs, *arguments]) else pull)(*cotangents)
    given = [varying(output) for output, ct in zip(outputs, cotangents, strict=True) if ct is not None]
    shares, in_all = frozenset().union(*map(varying, outputs)), frozenset.intersection(*given)
    for grad, argument in zip(grads, arguments, strict=True):
        if grad is not None and (varying(jax.typeof(grad)) - varying(argument) - in_all) & shares:
            raise rule.error("shares and totals")
    return [g if g is None else _as_varying_as(a, g) for g, a in zip(grads, arguments, strict=True)]


def _checked(pull: Callable[..., Arrays], rule: Rule) -> Callable[..., Arrays]:
    """`pull`, refused where a callback in it hides that its result varies over the devices."""

    def checked(*cotangents: Any) -> Arrays:
        given = [ct is not None for ct in cotangents]
        fun, present = without_none(lambda *vectors: pull(*spread(vectors, given)))
        vectors = chosen(cotangents, given)
        jaxpr, captured = trace(f"{rule.name}.backward", fun, *vectors)
        if hides_varying(open_jaxpr(jaxpr)):
            raise rule.error("varying callback")
        return spread(jaxpr_as_fun(jaxpr)(*captured, *vectors), present)

    return checked


def _any_varies(avals: Iterable[Any]) -> bool:
    return any(map(varying, avals))


def _as_varying_as(aval: Any, grad: Any) -> Any:
    """Inside shard_map: sum a gradient over the mesh axes on which it varies and its argument does not."""
    on = varying(jax.typeof(grad))
    if surplus := tuple(on - varying(aval)):
        grad = jax.lax.psum(grad, surplus)
    if missing := tuple(varying(aval) - on):
        grad = jax.lax.pcast(grad, missing, to="varying")
    return grad


def _linear_forward(
    *args: Any, linear: Linear, needs: Needs, avals: Sequence[Any], rule: Rule, derive: bool, **_: Any
) -> Arrays:
    """Forward mode: the user's jvp, or the transpose of backward."""
    n_residuals = len(linear.kept)
    residuals, tangents = [to_tensor(x) for x in args[:n_residuals]], [to_tensor(x) for x in args[n_residuals:]]
    if linear.push is not None:
        results = chosen(linear.push(residuals, spread(tangents, needs)), linear.differentiable)
        return [ad.zeros_like_aval(a) if x is None else x for x, a in zip(results, avals, strict=True)]
    if not derive:
        raise rule.error("forward mode")
    pull = _dense(linear.pull, residuals, linear.differentiable, needs)
    types = [jax.typeof(t) for t in tangents]
    return _transpose(lambda *cts: _pull_summed(pull, cts, avals, types, rule), avals, tangents, rule)


def _dense(
    fun: LinearMap | None, residuals: Arrays, given: Sequence[bool], wanted: Sequence[bool]
) -> Callable[..., Arrays]:
    """`pull` or `push` as a function of its given vectors alone; it returns those that are wanted, None among them."""
    assert fun is not None
    return lambda *vectors: chosen(fun(residuals, spread(vectors, given)), wanted)


def _transpose(fun: Callable[..., Arrays], avals: Sequence[Any], vectors: Sequence[Any], rule: Rule) -> Arrays:
    """Apply the transpose of a linear function (which may return None for zero) to `vectors`."""
    given, present = without_none(fun)
    try:  # zeros rather than types: these know on which mesh axes they vary
        zeros = list(map(ad.zeros_like_aval, avals))
        jaxpr, captured = trace(rule.name, given, *zeros)
        n = len(captured)
        known = [not is_tracer(x) and not np.any(x) for x in captured]
        if adds_constant(open_jaxpr(jaxpr), [False] * n + [True] * len(zeros), known + [False] * len(zeros)):
            raise rule.error("not linear")
        transposed = jax.linear_transpose(lambda *xs: jaxpr_as_fun(jaxpr)(*captured, *xs), *zeros)
        return list(transposed(chosen(vectors, present)))
    except FnjaxError:
        raise
    except Exception as e:  # whatever JAX says of an operation without a transpose
        raise rule.error("not linear") from e


def _linear_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Arrays, Arrays]:
    n_residuals = len(params["linear"].kept)
    results = linear_p.bind(*primals, **params)
    # Linear in the others, and to stay so for whoever transposes.
    if all(type(t) is ad.Zero for t in tangents[:n_residuals]):
        filled = [ad.instantiate_zeros(t) for t in tangents[n_residuals:]]
        return results, linear_p.bind(*primals[:n_residuals], *filled, **params)

    _, dots = _jvp(functools.partial(_linear_forward, **params), primals, tangents)
    return results, dots


def _linear_batch(
    axis: Any,
    args: Sequence[Any],
    dims: Sequence[int | None],
    *,
    linear: Linear,
    needs: Needs,
    avals: Any,
    **params: Any,
) -> tuple[Arrays, list[int | None]]:
    if all(dim is None for dim in dims) and type(axis.name) is object:  # what JAX has for an axis without a name
        results = linear_p.bind(*args, linear=linear, needs=needs, avals=avals, **params)
        return results, [None] * len(results)
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
        **params,
    )
    return tangents, [0] * len(tangents)


linear_p.def_impl(_linear_forward)
linear_p.def_abstract_eval(lambda *_, avals, **__: avals)
ad.primitive_transposes[linear_p] = _linear_transpose
ad.primitive_jvps[linear_p] = _linear_jvp
batching.fancy_primitive_batchers[linear_p] = _linear_batch
mlir.register_lowering(linear_p, mlir.lower_fun(_linear_forward, multiple_results=True))


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
ad.primitive_transposes[wall_p] = lambda cotangents, *args, **params: _wall_jvp((), (), **params)
batching.primitive_batchers[wall_p] = lambda args, dims, *, n_values, **params: (
    wall_p.bind(*args, n_values=n_values, **params),
    dims[:n_values],
)
mlir.register_lowering(wall_p, lambda ctx, *args, n_values, **_: list(args[:n_values]))
