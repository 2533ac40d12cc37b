"""fnjax_call: a call of a Function as one equation, operands → outputs.

With its own primitives every Function has every derivative, Hessians included, which `jax.custom_vjp` does not have for
every rule (docs/design.md compares them). Every fact of a trace is a parameter of an equation, so no state is
shared: `jax.custom_vjp` keeps the structure of its residuals in one store per staged call and replaces it whenever the
forward rule is traced again, for other perturbed inputs.

The derivative of `fnjax_call` computes the outputs by `fnjax_call` again: so the second derivative of a saved output
uses the custom rule too, even where JAX could not differentiate the body. A saved intermediate is an extra result,
whose derivative is that of the body.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun, set_current_trace
from jax.interpreters import ad, batching, mlir
from jax.interpreters.partial_eval import dce_jaxpr

from fnjax._primitives.batching import Batched, batch
from fnjax._primitives.checkify import check_with
from fnjax._primitives.closure_convert import closure_convert
from fnjax._primitives.jax_internals import (
    Linearizing,
    as_call,
    belongs_above,
    checkpoint_traces,
    effects_of,
    has_no_gradient,
    is_transformed,
    is_unnamed,
    join_linearizing,
    keeps_kernel,
    lower_in_place,
    make_cache_anchor,
    open_jaxpr,
    opened_by,
    split_linearizing,
    under_primal_trace,
    without_writes,
)
from fnjax._primitives.jaxprs import FORWARD, iter_equations
from fnjax._primitives.linear_transpose import transpose_call
from fnjax._primitives.linearity import is_linear_by_rule
from fnjax._primitives.linearization import bind_linear, bind_transposed, jvp_of_perturbed
from fnjax._primitives.memory_moves import move_to
from fnjax._primitives.partial_eval import WithValues, partially_evaluated
from fnjax._primitives.rule import (
    Arrays,
    Body,
    ForwardResult,
    Needs,
    Rule,
    merge,
    select,
    unique,
)
from fnjax._primitives.sharding import any_varies, hides_varying
from fnjax._primitives.trace import closes_over_tracers, trace, trace_run
from fnjax._primitives.tree import is_inexact, is_ref, is_tracer, to_tensors
from fnjax._primitives.types import Axis, Jaxpr
from fnjax.errors import ClosureError, FnjaxError

call_p = Primitive(FORWARD)
call_p.multiple_results = True


class _BodyNeededError(Exception):
    """Control flow: an equation without a body came to a trace that needs one.

    Which trace an equation comes to is known only when the transformations around it have been peeled off, one by one.
    """


def call(rule: Rule, operands: Sequence[Any]) -> Arrays:
    """Apply a rule to operands under the current transformation; return its outputs."""
    under = split_linearizing(operands)
    if under is not None:  # JAX would call _jvp under another trace, which costs more than a small Function
        return _linearize(under, rule, operands)
    try:
        # Outside jit, the operands are concrete once the outer transformations are peeled off: no body is needed, and
        # the user's methods run on arrays that they can print.
        outputs: Arrays = call_p.bind(*operands, rule=rule, body=None)
    except _BodyNeededError:
        pass
    else:
        return outputs
    return _stage(rule, (False,) * len(operands), operands).outputs


def _linearize(under: Linearizing, rule: Rule, operands: Sequence[Any]) -> Arrays:
    """Apply a rule under `jax.linearize`: return what JAX computes by `_jvp`, without a trace of its own for that."""
    needs = under.perturbed
    with set_current_trace(under.primal_trace):
        if not any(needs):
            return call(rule, operands)
        # Outside jit, JAX passes Python and NumPy numbers unconverted; the user's methods see JAX arrays.
        primals = to_tensors(under.primals)
        result, residuals = _run_forward(rule, needs, primals)
    with set_current_trace(under.linear_trace):
        tangents = bind_linear(result, residuals, needs, under.tangents, rule)
    return join_linearizing(under, operands[needs.index(True)], result.outputs, tangents)


def _run_forward(rule: Rule, needs: Needs, operands: Sequence[Any]) -> tuple[ForwardResult, Arrays]:
    """Run a rule that is being differentiated, on concrete arrays or as an equation; return result and residuals."""
    for x, need in zip(operands, needs, strict=True):
        if need and is_ref(x):
            raise rule.error("perturbed ref")
    if is_transformed():
        result = _stage(rule, needs, operands)
    else:
        result = rule.forward(needs, operands)
        # From concrete operands, tracers can only come from the trace that differentiates, by closure.
        if any(map(is_tracer, (*result.outputs, *result.intermediates))):
            raise rule.error("closure")
    values = {"operand": operands, "output": result.outputs, "intermediate": result.intermediates}
    return result, [values[source.source][source.at] for source in result.derivative.sources]


def _stage(rule: Rule, needs: Needs, operands: Sequence[Any]) -> ForwardResult:
    """Trace a rule into a body, now, while the arrays that it closes over are alive; bind it and return the result.

    The operands of the equation, which are those of its body, and the rule of the equation:

        closed                 operands    `rule`, if it closes over no tracers
        closed  closed_over    operands    otherwise `converted`, whose operands are closed_over and operands

    The body closes over `closed`. Backward and jvp need `closed_over`, too, and the body ignores what only they need.

    Raises:
        FnjaxError: for closed-over tracers of a transformation that has ended, and callbacks that hide device-varying
            values.
    """
    # A rule that can finish runs forward for its outputs only, so that the user's batching rule still applies.
    finishes = rule.finishes and any(needs)
    jaxpr, closed, n_outputs, derivative = trace_run(rule, (False,) * len(needs) if finishes else needs, operands)
    is_on_mesh = not jax.sharding.get_abstract_mesh().empty
    if is_on_mesh and any(needs) and any_varies(map(jax.typeof, operands)) and hides_varying(open_jaxpr(jaxpr)):
        raise rule.error("varying callback")
    if any(map(belongs_above, closed)):
        raise rule.error("closure")
    converted, converted_operands = rule, operands
    try:
        # JAX may run the rule again when the trace of the tracers over which it closes has ended.
        if closes_over_tracers(rule.functions) or any(map(is_tracer, closed)):
            converted, closed_over, derivative_of_closed = closure_convert(rule, operands)
            converted_operands = [*closed_over, *operands]
            if any(needs):  # then the converted rule runs, as its derivative may be needed that late, too
                finishes, derivative = False, derivative_of_closed
                run = trace_run(converted, (False,) * len(converted_operands), converted_operands)
                jaxpr, closed, n_outputs, _ = run
            elif closed_over:
                jaxpr, closed = _insert_operands(jaxpr, closed, closed_over, operands)
        body = Body(jaxpr, len(closed), n_outputs)
        results = _bind(body, [*closed, *converted_operands], rule=converted, cache_anchor=make_cache_anchor())
    except jax.errors.UnexpectedTracerError as e:
        raise rule.error("closure") from e
    if finishes:
        return rule.finish(needs, operands, results)
    intermediates = [*results[n_outputs:], *converted_operands[: len(converted_operands) - len(operands)]]
    return ForwardResult(results[:n_outputs], intermediates, derivative)


def _insert_operands(
    jaxpr: ClosedJaxpr, closed: Arrays, closed_over: Arrays, operands: Sequence[Any]
) -> tuple[ClosedJaxpr, Arrays]:
    """Return a body with `closed_over` among its operands, and what else it closes over.

        before    closed                                    operands
        after     closed without closed_over, closed_over,  operands

    An array that is in both becomes one operand: a Ref must not appear twice.
    """
    distinct, indices = unique([*closed_over, *closed])
    n, n_distinct, run = len(closed_over), len(distinct), jaxpr_as_fun(jaxpr)
    others = distinct[n:]

    def reordered(*xs: Any) -> Arrays:
        values = [*xs[len(others) : n_distinct], *xs[: len(others)]]  # in the order of `distinct`
        return list(run(*(values[i] for i in indices[n:]), *xs[n_distinct:]))

    return jax.make_jaxpr(reordered)(*others, *closed_over, *operands), others


def _bind(body: Body, operands: Sequence[Any], **params: Any) -> Arrays:
    """Bind an equation with a body, which JAX must see before it lowers if it has Refs: only operations have rules."""
    call = as_call(body.jaxpr, opened=any(map(is_ref, body.jaxpr.in_avals)))
    results: Arrays = call_p.bind(*operands, body=body, **call, **params)
    return results


def _impl(*operands: Any, rule: Rule, body: Body | None, **_: Any) -> Arrays:
    if body is None:
        outputs = rule.forward((False,) * len(operands), to_tensors(operands)).outputs
        if any(map(is_tracer, outputs)):  # a closed-over tracer: its own trace must see the call
            raise _BodyNeededError
        return outputs
    return list(jaxpr_as_fun(body.jaxpr)(*operands))


def _abstract_eval(*_: Any, body: Body | None, **__: Any) -> tuple[Any, Any]:
    if body is None:
        raise _BodyNeededError
    return body.jaxpr.out_avals, effects_of(open_jaxpr(body.jaxpr)) if body.jaxpr.effects else set()


@keeps_kernel
def _jvp(
    primals: Sequence[Any], tangents: Sequence[Any], *, rule: Rule, body: Body | None, **_: Any
) -> tuple[Arrays, Arrays]:
    """Return outputs, by running or binding the call again, and their tangents, by `fnjax_linear`."""
    needs = tuple(type(t) is not ad.Zero and not has_no_gradient(x) for x, t in zip(primals, tangents, strict=True))
    n = 0 if body is None else body.n_closed_over
    if any(needs[:n]):
        raise rule.error("closure")
    with under_primal_trace(tangents):
        result, residuals = _run_forward(rule, needs[n:], to_tensors(primals[n:]))
    dots = bind_linear(result, residuals, needs[n:], tangents[n:], rule)
    if body is None:
        return result.outputs, dots
    # The equation's result types were fixed when its body was traced, before it was known what is differentiated.
    results = body.jaxpr.out_avals
    if [_type(x) for x in result.outputs] != [_type(a) for a in results[: body.n_outputs]]:
        raise rule.error("outputs")
    if len(results) == body.n_outputs:
        return result.outputs, dots
    saved, saved_dots = _jvp_of_intermediates(rule, body, primals, tangents)
    return [*result.outputs, *saved], [*dots, *saved_dots]


def _type(value: Any) -> tuple[Any, Any]:
    return value.shape, value.dtype


def _jvp_of_intermediates(
    rule: Rule, body: Body, primals: Sequence[Any], tangents: Sequence[Any]
) -> tuple[Arrays, Arrays]:
    """Return values and tangents of the intermediates; JAX differentiates the operations that compute them.

    Operations for integers, or for what depends on no perturbed operand, are not differentiated: they may be callbacks.
    Zeros are symbolic: JAX 0.12 cannot transpose an optimization barrier between tangents that has others.
    """
    jaxpr, n_outputs = body.jaxpr, body.n_outputs
    perturbed = [type(t) is not ad.Zero for t in tangents]

    def depends(result: int) -> bool:
        used = dce_jaxpr(open_jaxpr(jaxpr), [i == result for i in range(len(jaxpr.out_avals))])[1]
        return any(select(used, perturbed))

    smooth = [is_inexact(a) and depends(n_outputs + i) for i, a in enumerate(jaxpr.out_avals[n_outputs:])]

    def compute(differentiated: bool) -> Callable[..., Arrays]:
        # The run has already written to Refs, so values read from them may have changed.
        part = without_writes(open_jaxpr(jaxpr), [False] * n_outputs + [s == differentiated for s in smooth])
        if part is None:
            raise rule.error("intermediate")
        return lambda *args: jax.core.eval_jaxpr(part, jaxpr.consts, *args)

    constants = iter([] if all(smooth) else compute(False)(*primals))
    values, dots = iter(()), iter(())
    try:
        if any(smooth):
            values, dots = map(iter, jvp_of_perturbed(compute(True), primals, tangents))
    except FnjaxError:
        raise
    except Exception as e:  # any error of JAX about a callback or a kernel without a derivative
        raise rule.error("intermediate") from e
    saved = [next(values if s else constants) for s in smooth]
    return saved, [
        next(dots) if s else ad.Zero(jax.typeof(x).to_tangent_aval()) for s, x in zip(smooth, saved, strict=True)
    ]


@keeps_kernel
def _batch(
    axis: Axis,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    *,
    rule: Rule,
    body: Body | None,
    cache_anchor: Any = None,
    **params: Any,
) -> tuple[Arrays, list[int | None]]:
    unbatched = all(dim is None for dim in dims)
    if body is None:
        return _batch_unstaged(axis, operands, dims, rule, unbatched=unbatched)
    # A collective over the axis returns batched results for unbatched operands.
    if unbatched and not _names_axis(body.jaxpr, axis.name):
        results = call_p.bind(*operands, rule=rule, body=body, cache_anchor=cache_anchor, **params)
        return results, [None] * len(results)
    n, jaxpr = body.n_closed_over, body.jaxpr
    if rule.has_vmap:
        if len(jaxpr.out_avals) > body.n_outputs:
            raise rule.error("vmap intermediate")
        return rule.vmap(axis.size, operands[n:], dims[n:], jaxpr.out_avals)
    axes: list[int | None] = []

    def run(*operands: Any) -> Arrays:
        results, axes[:] = batch(lambda xs: jaxpr_as_fun(jaxpr)(*xs), axis, operands, dims)
        return results

    # The constants of a batched program, such as the permutation of a ppermute, are closed-over arrays.
    batched = trace(f"{rule.name}.vmap", run, *operands)
    body = Body(batched.jaxpr, len(batched.closed_over) + n, body.n_outputs)
    operands = [*batched.closed_over, *operands]
    return _bind(body, operands, rule=Batched(rule, axis, dims[n:]), cache_anchor=cache_anchor), axes


def _batch_unstaged(
    axis: Axis, operands: Sequence[Any], dims: Sequence[int | None], rule: Rule, *, unbatched: bool
) -> tuple[Arrays, list[int | None]]:
    """Batch a call that has no body yet: run forward once, batched, under the surrounding traces."""
    # A user's rule needs the outputs' types, and closed-over tracers are alive only now.
    if rule.has_vmap or closes_over_tracers(rule.functions):
        raise _BodyNeededError
    try:
        if unbatched and is_unnamed(axis):
            results = call(rule, operands)
            return results, [None] * len(results)
        batched = Batched(rule, axis, dims)
        outputs = call(batched, operands)
    except (jax.errors.UnexpectedTracerError, ClosureError) as e:  # a tracer of this axis in an undetected closure
        raise _BodyNeededError from e
    return outputs, batched.output_dims


def _names_axis(program: Jaxpr, name: Any) -> bool:
    """Return whether a collective in a program refers to the axis `name`."""
    params = (param for eqn in iter_equations(program) for param in eqn.params.values())
    values = (x for param in params for x in (param if isinstance(param, tuple) else [param]))
    return any(type(x) is type(name) and bool(x == name) for x in values)  # others may not support ==


def _transpose(
    cotangents: Sequence[Any], *operands: Any, rule: Rule, body: Body, known_linear: bool = False, **_: Any
) -> list[Any]:
    """Transpose a call in the operands in which it is linear: a backward that calls a Function on grad_output.

    This transposes the operations of forward: only these can be checked for linearity, and the user's backward need not
    be their derivative.
    """
    linear = [ad.is_undefined_primal(x) for x in operands]  # JAX's mark for what it transposes in
    if rule.linear_in:
        return _transpose_linear(cotangents, operands, linear, rule, body)
    n = body.n_closed_over
    present = [type(ct) is not ad.Zero for ct in cotangents]  # the other outputs need not be linear
    types, vectors = [x.aval for x in select(operands, linear)], select(cotangents, present)
    refs = [x if not u and is_ref(x) else None for x, u in zip(operands, linear, strict=True)]
    is_known = [not u and ref is None for u, ref in zip(linear, refs, strict=True)]  # what custom_jvp may take
    known = select(operands, is_known)

    def fill(known: Sequence[Any], xs: Sequence[Any]) -> Arrays:
        values = {True: iter(known), False: iter(xs)}
        return [next(values[k]) if ref is None else ref for k, ref in zip(is_known, refs, strict=True)]

    def run(known: Arrays, xs: Sequence[Any]) -> Arrays:
        return select(jaxpr_as_fun(body.jaxpr)(*fill(known, xs)), present)

    def differentiate(known: Arrays, dots: Arrays, xs: Sequence[Any]) -> Arrays:
        filled = fill(known, xs)
        tangents = merge(dots, is_known)
        needs = [
            t is not None and type(t) is not ad.Zero and is_inexact(x) for t, x in zip(tangents, filled, strict=True)
        ]
        if any(needs[:n]):
            raise rule.error("closure")
        # Without an equation, intermediates that do not depend on what is transposed are known.
        result = rule.forward(tuple(needs[n:]), filled[n:])
        values = {"operand": filled[n:], "output": result.outputs, "intermediate": result.intermediates}
        residuals = [values[source.source][source.at] for source in result.derivative.sources]
        outputs = bind_linear(result, residuals, tuple(needs[n:]), tangents[n:], rule)
        return [ad.instantiate_zeros(t) for t, p in zip(outputs, present, strict=False) if p]

    inner, start = rule, n
    while isinstance(inner, WithValues):  # known values in front, some of which may be zeros
        start, inner = start + inner.n_values, inner.rule
    types_in = body.jaxpr.in_avals[start:]
    if is_linear_by_rule(inner, types_in, linear[start:], None if known_linear and not n else body.jaxpr):
        params = {"rule": rule, "cache_anchor": make_cache_anchor()}
        vjp = jax.vjp(lambda *xs: _bind(body, fill(known, xs), **params), *map(ad.zeros_like_aval, types))[1]
        return merge(vjp(vectors), linear)
    return merge(transpose_call(run, differentiate, known, types, vectors, rule, known_linear=known_linear), linear)


def _transpose_linear(
    cotangents: Sequence[Any], operands: Sequence[Any], linear: Sequence[bool], rule: Rule, body: Body
) -> list[Any]:
    """Transpose a call of a linear Function: its backward, without a value of the operands to transpose in."""
    n = body.n_closed_over
    if any(linear[:n]):
        raise rule.error("closure")
    types = [x.aval for x in select(operands, linear)]
    filled = [ad.zeros_like_aval(x.aval) if u else x for x, u in zip(operands, linear, strict=True)]
    traced, closed, n_outputs, derivative = trace_run(rule, tuple(linear[n:]), filled[n:])
    jaxpr = open_jaxpr(traced)
    jaxpr = jaxpr.replace(eqns=[eqn.replace(effects=set()) for eqn in jaxpr.eqns])  # those of forward have happened
    jaxpr, used = dce_jaxpr(jaxpr, [i >= n_outputs for i in range(len(jaxpr.outvars))])
    if any(select(used[len(closed) :], linear[n:])):
        raise rule.error("linear residual")
    intermediates = jax.core.eval_jaxpr(jaxpr, (), *select([*closed, *filled[n:]], used))
    values = {"operand": filled[n:], "intermediate": intermediates}
    residuals = [values[source.source][source.at] for source in derivative.sources]
    grads = bind_transposed(derivative, residuals, tuple(linear[n:]), types, cotangents[:n_outputs], rule)
    return merge([*grads], linear)


def _recompute(
    trace: Any, saves: Any, values: Sequence[Any], recomputed: Sequence[Any], *, rule: Rule, body: Body | None, **_: Any
) -> tuple[Arrays, Arrays] | None:
    """Return the outputs under a `jax.checkpoint` twice, as first computed and as recomputed; None if nothing is saved.

    JAX's coming implementation asks the policy while the call is still one equation. So it is differentiated here; if
    the policy knows the name of its residuals, they are saved and become operands of the recomputed call.
    """
    if body is None or len(body.jaxpr.out_avals) > body.n_outputs or (memory := saves(rule.residual_name)) is None:
        return None
    values, recomputed = values[body.n_closed_over :], recomputed[body.n_closed_over :]
    if any(map(is_ref, values)):
        return None
    primal_trace, jaxpr_trace = checkpoint_traces(trace)
    with set_current_trace(primal_trace):
        result, residuals = _run_forward(rule, tuple(map(is_inexact, values)), values)
        residuals = move_to(memory, residuals)
    with set_current_trace(jaxpr_trace):
        residuals = move_to(jax.memory.Space.Device, residuals)
        return result.outputs, call(WithValues(rule, len(residuals), result.derivative), [*residuals, *recomputed])


call_p.def_impl(_impl)
opened_by(call_p, _impl)
partially_evaluated(call_p)
check_with(
    call_p,
    _impl,
    lambda body, **_: len(body.jaxpr.in_avals),
    lambda body, opened, **_: as_call(body.jaxpr, opened=opened),
    _recompute,
)
call_p.def_effectful_abstract_eval(_abstract_eval)
ad.primitive_jvps[call_p] = _jvp
ad.primitive_transposes[call_p] = _transpose
batching.fancy_primitive_batchers[call_p] = _batch
mlir.register_lowering(
    call_p, lambda ctx, *operands, body, **_: lower_in_place(ctx, body.jaxpr, operands), cacheable=False
)
