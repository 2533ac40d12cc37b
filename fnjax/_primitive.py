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
    jaxprs_in_params,
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
LinearMap = Callable[[Sequence[Any], Sequence[Any]], Arrays]

# What can go wrong below the line: a captured array is being differentiated; forward mode on a rule that has none; the
# transpose is due of a rule that is not linear; an intermediate that JAX cannot differentiate; a run that returned
# other outputs than the one before.
Trouble = Literal["closure", "forward mode", "not linear", "intermediate", "outputs"]


class Kept(NamedTuple):
    """Where a residual comes from: the `at`-th operand, output or intermediate of the call."""

    source: Literal["operand", "output", "intermediate"]
    at: int


@dataclasses.dataclass(frozen=True, eq=False)
class Linear:
    """The derivative that one run of forward left behind; it holds no arrays.

    Of `pull` and `push` one may be missing: it is then the transpose of the other.

    Attributes:
        kept: the residuals of `pull` and `push`.
        differentiable: for each output whether it carries a gradient.
        pull: (residuals, cotangents of all outputs or None) → gradients of all operands or None.
        push: (residuals, tangents of all operands or None) → tangents of all outputs or None.
        derive: whether forward mode on the function itself may use the transpose of `pull`.
    """

    kept: tuple[Kept, ...]
    differentiable: tuple[bool, ...]
    pull: LinearMap | None
    push: LinearMap | None = None
    derive: bool = False


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


def call(rule: Rule, operands: Sequence[Any], *, inner: bool) -> Arrays:
    """Call `rule` on arrays of which some are being traced; `inner` if the call stands inside a derivative."""
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
    return _staged_run(rule, (False,) * len(operands), operands, inner=inner).outputs


def _staged_run(rule: Rule, needs: Needs, operands: Sequence[Any], *, inner: bool) -> Run:
    """Run a rule as an equation, with the arrays that it captures as operands; `inner` is for a run in a derivative."""
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
            inner=inner,
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
        self._tangents = [x.to_tangent_aval() if n else None for x, n in zip(sources["operand"], needs, strict=True)]
        self._pull, by_pull = _freeze(linear.pull, residuals, self._cotangents)
        self._push, by_push = _freeze(linear.push, residuals, self._tangents)
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


def _freeze(fun: LinearMap | None, residuals: Sequence[Any], given: Sequence[Any]) -> tuple[LinearMap | None, Arrays]:
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
        jaxpr, captured = _trace(without_none, residuals, given)
    except Exception as e:  # noqa: BLE001 - whatever the user's method raises, it is due when somebody differentiates
        error = e.with_traceback(None)

        def fail(residuals: Sequence[Any], given: Sequence[Any]) -> Arrays:
            raise error

        return fail, []

    def frozen(residuals: Sequence[Any], given: Sequence[Any]) -> Arrays:
        return _spread(jaxpr_as_fun(jaxpr)(*residuals, *given), present)

    return frozen, captured


def _spread(values: Sequence[Any], where: Sequence[bool]) -> Arrays:
    """The values in the places where `where` is set, None in the others."""
    given = iter(values)
    return [next(given) if w else None for w in where]


def _chosen(values: Sequence[Any], where: Sequence[bool]) -> Arrays:
    """The values in the places where `where` is set."""
    return [value for value, w in zip(values, where, strict=True) if w]


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
        assert linear.pull is not None
        grads = vmap(linear.pull, axis, (list(dims), 0))(list(residuals), list(cotangents))
        return [
            None if g is None else g.sum(0) if dim is None else jax.numpy.moveaxis(g, 0, dim)
            for g, dim in zip(grads, operands, strict=True)
        ]

    def push(residuals: Sequence[Any], tangents: Sequence[Any]) -> Arrays:
        assert linear.push is not None
        given = [None if t is None else dim for t, dim in zip(tangents, operands, strict=True)]
        return list(vmap(linear.push, axis, (list(dims), given))(list(residuals), list(tangents)))

    return dataclasses.replace(linear, pull=linear.pull and pull, push=linear.push and push)


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
            run = _staged_run(rule, rule_needs, operands, inner=True)
        else:
            run = rule.run(rule_needs, *operands)
    if jaxpr is not None and [_type(x) for x in run.outputs] != [_type(a) for a in jaxpr.out_avals[:n_outputs]]:
        raise rule.error("outputs")
    sources = {"operand": operands, "output": run.outputs, "intermediate": run.intermediates}
    residuals = [sources[kept.source][kept.at] for kept in run.linear.kept]
    differentiable = run.linear.differentiable
    avals = [jax.typeof(x).to_tangent_aval() for x in run.outputs]
    dense = iter(())
    if any(differentiable):
        dense = iter(
            linear_p.bind(
                *residuals,
                *[t for t in tangents[n_closed:] if type(t) is not ad.Zero],
                linear=run.linear,
                needs=rule_needs,
                avals=tuple(a for a, d in zip(avals, differentiable, strict=True) if d),
                rule=rule,
                derive=inner or run.linear.derive,
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
    inner: bool,
    lifetime: ClosedJaxpr,
) -> tuple[Arrays, list[int | None]]:
    if jaxpr is None:
        raise NeedsBodyError
    if all(dim is None for dim in dims) and not _names_axis(_open(jaxpr), axis.name):
        results = call_p.bind(
            *operands, rule=rule, jaxpr=jaxpr, n_outputs=n_outputs, n_closed=n_closed, inner=inner, lifetime=lifetime
        )
        return results, [None] * len(results)
    run = vmap(lambda operands: jaxpr_as_fun(jaxpr)(*operands), axis, (list(dims),))
    results = call_p.bind(
        *operands,
        rule=_Batched(rule, axis, dims[n_closed:]),
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
        any(name == p or (isinstance(p, tuple) and name in p) for p in eqn.params.values())
        or any(_names_axis(sub, name) for sub in jaxprs_in_params(eqn.params))
        for eqn in jaxpr.eqns
    )


call_p.def_impl(_call_impl)
call_p.def_effectful_abstract_eval(_call_abstract)
ad.primitive_jvps[call_p] = _call_jvp
batching.fancy_primitive_batchers[call_p] = _call_batch
mlir.register_lowering(
    call_p, mlir.lower_fun(lambda *operands, jaxpr, **_: jaxpr_as_fun(jaxpr)(*operands), multiple_results=True)
)


# ---------------------------------------------------------------------------------------------------------------------
# fnjax_linear


def _linear_transpose(
    cotangents: Sequence[Any], *args: Any, linear: Linear, needs: Needs, rule: Rule, **_: Any
) -> list[Any]:
    n_residuals = len(linear.kept)
    residuals, tangents = [to_tensor(x) for x in args[:n_residuals]], args[n_residuals:]
    grads: Sequence[Any] = [None] * len(tangents)
    if any(type(ct) is not ad.Zero for ct in cotangents):
        if linear.pull is not None:
            given = [None if type(ct) is ad.Zero else to_tensor(ct) for ct in cotangents]
            grads = _chosen(linear.pull(residuals, _spread(given, linear.differentiable)), needs)
        else:
            push = _dense(linear.push, residuals, needs, linear.differentiable)
            given = [ad.instantiate_zeros(ct) for ct in cotangents]
            grads = _transpose(push, [t.aval for t in tangents], given, rule)
    return [None] * n_residuals + [
        ad.Zero(t.aval.to_ct_aval()) if grad is None else grad for grad, t in zip(grads, tangents, strict=True)
    ]


def _linear_forward(
    *args: Any, linear: Linear, needs: Needs, avals: Sequence[Any], rule: Rule, derive: bool, **_: Any
) -> Arrays:
    """Forward mode: the user's jvp, or the transpose of backward."""
    n_residuals = len(linear.kept)
    residuals, tangents = [to_tensor(x) for x in args[:n_residuals]], [to_tensor(x) for x in args[n_residuals:]]
    if linear.push is not None:
        results = _chosen(linear.push(residuals, _spread(tangents, needs)), linear.differentiable)
        return [ad.zeros_like_aval(a) if x is None else x for x, a in zip(results, avals, strict=True)]
    if not derive:
        raise rule.error("forward mode")
    pull = _dense(linear.pull, residuals, linear.differentiable, needs)
    return _transpose(pull, [a.to_ct_aval() for a in avals], tangents, rule)


def _dense(
    fun: LinearMap | None, residuals: Arrays, given: Sequence[bool], wanted: Sequence[bool]
) -> Callable[..., Arrays]:
    """`pull` or `push` as a function of its given vectors alone; it returns those that are wanted, None among them."""
    assert fun is not None
    return lambda *vectors: _chosen(fun(residuals, _spread(vectors, given)), wanted)


def _transpose(fun: Callable[..., Arrays], avals: Sequence[Any], vectors: Sequence[Any], rule: Rule) -> Arrays:
    """Apply the transpose of a linear function (which may return None for zero) to `vectors`."""
    present: list[bool] = []

    def without_none(*vectors: Any) -> Arrays:
        results = fun(*vectors)
        present[:] = [x is not None for x in results]
        return [x for x in results if x is not None]

    types = [jax.ShapeDtypeStruct(a.shape, a.dtype) for a in avals]
    try:
        transposed = jax.linear_transpose(without_none, *types)
        return list(transposed(_chosen(vectors, present)))
    except FnjaxError:
        raise
    except Exception as e:  # whatever JAX says of an operation without a transpose
        raise rule.error("not linear") from e


def _linear_jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Arrays, Arrays]:
    n_residuals = len(params["linear"].kept)
    moving = [i for i, t in enumerate(tangents) if type(t) is not ad.Zero]
    results = linear_p.bind(*primals, **params)
    if all(i >= n_residuals for i in moving):  # linear in these, and to stay so for whoever transposes
        filled = [ad.instantiate_zeros(t) for t in tangents[n_residuals:]]
        return results, linear_p.bind(*primals[:n_residuals], *filled, **params)

    def forward(*values: Any) -> Arrays:
        args = list(primals)
        for i, value in zip(moving, values, strict=True):
            args[i] = value
        return _linear_forward(*args, **params)

    _, dots = jax.jvp(forward, [primals[i] for i in moving], [tangents[i] for i in moving])
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
batching.primitive_batchers[wall_p] = lambda args, dims, *, n_values, **params: (
    wall_p.bind(*args, n_values=n_values, **params),
    dims[:n_values],
)
mlir.register_lowering(wall_p, lambda ctx, *args, n_values, **_: list(args[:n_values]))
