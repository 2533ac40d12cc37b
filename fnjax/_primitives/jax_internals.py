"""Everything that depends on an internal of JAX or on its version: design.md's table of risks, a function a line.

Nothing here depends on rules, ctx or classes.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax
from jax.extend import linear_util
from jax.extend.core import (
    ClosedJaxpr,
    DebugInfo,
    Effect,
    Literal,
    Primitive,
    find_top_trace,
    primitives,
    set_current_trace,
)
from jax.interpreters import ad, mlir
from jax.interpreters.partial_eval import JaxprTracer, dce_jaxpr, trace_to_jaxpr_dynamic

from fnjax._contexts import IN_KERNEL
from fnjax._primitives.types import Aval, Axis, Eqn, Jaxpr

# --- programs


def open_jaxpr(closed: Jaxpr) -> Any:
    """Return the jaxpr in a closed one; since JAX 0.12 both are one class."""
    return getattr(closed, "jaxpr", closed)


def trace_flat(
    name: str, fun: Callable[..., Any], avals: Sequence[Aval], arg_names: Sequence[str] = ()
) -> tuple[ClosedJaxpr, list[Any]]:
    """Return the jaxpr of a function of flat arrays, (closed-over arrays, arrays) → results, and the former arrays.

    JAX's errors call the arrays by `arg_names`, if there is one for each.
    `jax.make_jaxpr` costs several times as much as tracing a small Function does.
    """
    names = arg_names if len(arg_names) == len(avals) else [f"array {i}" for i in range(len(avals))]
    info = DebugInfo("fnjax", name, tuple(names), ())
    jaxpr, _, closed_over = trace_to_jaxpr_dynamic(linear_util.wrap_init(fun, debug_info=info), avals)
    if closed_over:  # once more with these as inputs: constants in a jaxpr would outlive their trace
        body, n = jaxpr, len(closed_over)
        avals = [*map(jax.typeof, closed_over), *avals]
        jaxpr = trace_flat(name, lambda *xs: jax.core.eval_jaxpr(body, xs[:n], *xs[n:]), avals)[0].jaxpr
    return ClosedJaxpr(jaxpr, ()), list(closed_over)


def cast_to_type(array: Any, aval: Aval) -> Any:
    """Return an array in the dtype of a type, weak where that is; JAX has no function that makes a type weak."""
    if array.dtype != aval.dtype or array.weak_type > aval.weak_type:
        array = array.astype(aval.dtype)
    if array.weak_type == aval.weak_type:
        return array
    return jax.lax.convert_element_type_p.bind(array, new_dtype=aval.dtype, weak_type=True, sharding=None)


def make_cache_anchor() -> Any:
    """Return an empty jaxpr, a cache anchor for an equation whose other parameters belong to the user.

    JAX caches what it infers about an equation under its parameters, and drops an entry only when a jaxpr among them
    dies (jax#30009); without one, thousands of static arguments and the classes that they were passed to would stay in
    that cache.
    Inside a Pallas kernel it is marked as high, see `is_in_kernel`.
    """
    return _empty_jaxpr().replace(is_high=is_in_kernel())


@functools.cache
def _empty_jaxpr() -> Any:
    return open_jaxpr(jax.make_jaxpr(lambda: ())())


def opened_by(primitive: Primitive, evaluate: Callable[..., Any]) -> None:
    """Let JAX replace an equation by what `evaluate` computes: in a kernel, and if its parameter `opened` says so."""

    def is_high(*_: Any, cache_anchor: Any = None, opened: bool = False, **__: Any) -> bool:
        return opened or (cache_anchor is not None and cache_anchor.is_high)

    primitive.is_high = is_high  # type: ignore[method-assign]  # as JAX's own primitives do
    primitive.to_lojax = evaluate  # type: ignore[method-assign]


class _Checked:
    """Program of an equation while checkify evaluates it; otherwise a program without equations."""

    debug_info = DebugInfo("fnjax", "checked", (), ())
    jaxpr = property(lambda self: self)  # it is closed and open
    seen: ContextVar[Any] = ContextVar("seen", default=None)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.seen.get() or _empty_jaxpr(), name)

    def __repr__(self) -> str:
        return repr(self.seen.get() or _empty_jaxpr())


# The parameter by which checkify, and other readers of programs, take an equation for a call, if its program is not
# known before it is evaluated.
UNKNOWN_PROGRAM = {"call_jaxpr": _Checked()}


def as_call(program: ClosedJaxpr, *, opened: bool) -> dict[str, Any]:
    """Return the parameters by which checkify, and other readers of programs, take an equation for a call.

    Args:
        program: that of the equation.
        opened: whether JAX must replace the equation by its program before it lowers; also if that has high operations
            or internal Refs, which JAX replaces.
    """
    has_refs = any(type(effect).__name__ == "InternalMutableArrayEffect" for effect in program.effects)
    return {"call_jaxpr": program, "opened": opened or program.is_high or has_refs}


def bound_by(primitive: Primitive, check: Callable[..., Any], recompute: Callable[..., Any] | None = None) -> None:
    """Let `check` and `recompute` compute an equation where JAX's own interpretation of it would not do.

    Args:
        primitive: the primitive; its equations have a parameter `rule`.
        check: computes the errors and results of an equation under `jax.experimental.checkify`. It receives a function
            (program, error values, operands of the program) → errors and results of the program; the error values and
            operands of the equation; and its parameters. Checkify binds the primitive to these values, without its
            `call_jaxpr`, and with a function in `subfuns` that evaluates that.
        recompute: computes an equation under a `jax.checkpoint` of JAX's coming implementation. It receives the trace;
            a function (name) → the memory in which the policy saves that name, or None; the operands known in the first
            computation, and those of the recomputation; and the equation's parameters. It returns the results of both,
            or None to evaluate the equation itself.
    """
    usual = primitive.bind_with_trace

    def bind(here: Any, args: Sequence[Any], avals: Sequence[Aval], params: dict[str, Any], /) -> Any:
        if "subfuns" not in params:
            # Like JAX's own rules, not inside a rule that is being differentiated itself.
            if recompute and getattr(here, "custom_vjp_rules", False) and here.policy is not None:
                own = [isinstance(x, jax.core.Tracer) and getattr(x._trace, "tag", None) is here.tag for x in args]
                values = [x.val if o else x for x, o in zip(args, own, strict=True)]
                recomputed = [x.tracer if o else x for x, o in zip(args, own, strict=True)]
                saves = functools.partial(memory_of, here.policy)
                if True in own and (results := recompute(here, saves, values, recomputed, **params)):
                    tracer_type = type(args[own.index(True)])
                    return [tracer_type(here, value, tracer) for value, tracer in zip(*results, strict=True)]
            try:
                return usual(here, args, avals, params)  # type: ignore[no-untyped-call]
            except KeyError as e:
                if e.args == (primitive,):  # jet's, or that of another interpreter with a table of rules
                    raise params["rule"].error("transformation") from e
                raise
        (checked,) = params.pop("subfuns")

        def run(jaxpr: Jaxpr, *values: Any) -> Any:
            token = _Checked.seen.set(jaxpr)
            try:
                return checked.call_wrapped(*values)
            finally:
                _Checked.seen.reset(token)

        with set_current_trace(here):
            return check(run, args, **params)

    primitive.def_bind_with_trace(bind)


def memory_of(policy: Any, name: str) -> Any:
    """Return the memory in which a policy of `jax.checkpoint` saves what has a name, or None if it does not."""
    case = policy(primitives.name_p, jax.core.ShapedArray((), jax.numpy.float32), name=name)
    if type(case).__name__ == "Offloadable":
        return jax.memory.Space.Host
    return jax.memory.Space.Device if case is True or type(case).__name__ == "SaveableType" else None


def checkpoint_traces(trace: Any) -> tuple[Any, Any]:
    """Return the traces of the first computation of a `jax.checkpoint` and of the recomputation."""
    return trace.parent_trace, trace.jaxpr_trace


def has_effects(jaxpr: Jaxpr) -> bool:
    """Return whether a program prints, checks or calls Python. A collective does not count as an effect."""
    return any(type(effect).__name__ != "NamedAxisEffect" for effect in jaxpr.effects)


def is_in_kernel() -> bool:
    """Return whether the kernel of a `pallas_call` is being traced.

    Pallas compiles only the primitives that it knows. Before that, JAX replaces each equation that is marked as
    high by what the `to_lojax` of its primitive computes. Elsewhere the mark has a cost: JAX 0.10 has no fast
    dispatch for a `jax.jit` with such an equation.
    """
    pallas = sys.modules.get("jax.experimental.pallas")
    if pallas is None:
        return False
    try:
        pallas.num_programs(sys.maxsize)
    except ValueError:  # there is a grid, and it has no such axis
        return True
    except (AssertionError, AttributeError, IndexError):
        return bool(IN_KERNEL.value)
    return True


def keeps_kernel(rule: Callable[..., Any]) -> Callable[..., Any]:
    """Return a primitive's rule that counts as inside a kernel whenever its equation is in one."""

    @functools.wraps(rule)
    def marked(*args: Any, cache_anchor: Any = None, **params: Any) -> Any:
        with IN_KERNEL(True) if cache_anchor is not None and cache_anchor.is_high else nullcontext():
            return rule(*args, cache_anchor=cache_anchor, **params)

    return marked


def destinations(eqn: Eqn) -> Sequence[Any]:
    """Return the memory, device or sharding to which `jax.device_put` moves each operand of an equation."""
    return eqn.params["devices"]  # type: ignore[no-any-return]


def lower_in_place(ctx: mlir.LoweringRuleContext, jaxpr: Jaxpr, operands: Sequence[Any]) -> Sequence[Any]:
    """Lower the operations of a jaxpr inline, not as a separate function."""
    results, tokens = mlir.jaxpr_subcomp(
        ctx.module_context,
        open_jaxpr(jaxpr),
        ctx.name_stack,
        ctx.tokens_in,
        (),
        *operands,
        dim_var_values=ctx.dim_var_values,
        const_lowering=ctx.const_lowering,
        outer_traceback=None,
    )
    ctx.set_tokens_out(tokens)
    return results


def lacks_token(error: Exception) -> bool:
    """Return whether lowering failed because the surrounding program does not know of an ordered effect."""
    return isinstance(error, KeyError) and isinstance(error.args[0], Effect)


def can_call_host(ctx: mlir.LoweringRuleContext) -> bool:
    """Return whether a lowered program can call Python: in this process, on one platform, not exported."""
    module = ctx.module_context
    if module.lowering_parameters.for_export:
        return False
    try:
        module.get_backend()
    except (NotImplementedError, ValueError):  # for several platforms, or for another machine
        return False
    return True


# XLA for the CPU stored a stack of 16-bit floats in a loop in 32 bits.
PROMOTES_HALF_FLOATS = jax.__version_info__ < (0, 11)


def effects_of(jaxpr: Jaxpr) -> set[Any]:
    """Return the effects of a program in the form that abstract evaluation returns: inputs by their position."""
    positions = {v: i for i, v in enumerate(jaxpr.invars)}
    return {e.replace(positions[e.input]) if hasattr(e, "input") else e for e in jaxpr.effects}


def without_writes(jaxpr: Jaxpr, needed: Sequence[bool]) -> Any:
    """Return a program for the needed results that does not write to its Refs.

    It is None if a result depends on a Ref to which the program writes.
    """
    written = {e.input for e in jaxpr.effects if hasattr(e, "input") and type(e).__name__ != "ReadEffect"}
    if written:
        jaxpr = jaxpr.replace(eqns=[eqn.replace(effects=set()) for eqn in jaxpr.eqns])
    part, _ = dce_jaxpr(jaxpr, list(needed), instantiate=True)
    used = (x for eqn in part.eqns for x in eqn.invars if not isinstance(x, Literal))
    return None if any(v in written for v in used) else part


def has_no_gradient(value: Any) -> bool:
    """Return whether a value is a Ref that JAX does not differentiate, although JAX creates a tangent for it."""
    return getattr(jax.typeof(value), "kind", None) == "no_grad_no_remat"


# --- traces


def _find_evaluation() -> Any:
    """Return the trace outside all transformations, one object for all threads; a new thread always starts in it."""
    traces: list[Any] = []
    thread = threading.Thread(target=lambda: traces.append(find_top_trace(())))
    thread.start()
    thread.join()
    return traces[0]


_EVALUATION = _find_evaluation()


def is_transformed() -> bool:
    """Return whether the current call is under a transformation; otherwise arrays are concrete."""
    # Without arguments it returns the current trace, five times as fast as `with take_current_trace()`.
    return find_top_trace(()) is not _EVALUATION


# `inline=` of a jax.jit whose equations become those of the program around it while JAX traces.
INLINE_EARLY: Any = jax.Inline.JAX_EARLY if hasattr(jax, "Inline") else True  # JAX 0.10 has two ways


def is_staged() -> bool:
    """Return whether the current call becomes part of a program; derivatives outside jit compute at once."""
    return find_program() is not _EVALUATION


def find_program() -> Any:
    """Return the trace of the program that the current call becomes part of; outside of one, that of evaluation."""
    trace = find_top_trace(())
    # JAX has no public names for the traces of jax.linearize and jax.vmap, but only these have such attributes.
    while isinstance(trace, ad.JVPTrace) or hasattr(trace, "tangent_trace") or hasattr(trace, "axis_data"):
        trace = trace.parent_trace
    return trace


def find_trace(array: Any) -> Any:
    """Return the trace that an array belongs to; None for one that is not traced."""
    return getattr(array, "_trace", None)


def is_in_scope(array: Any) -> bool:
    """Return whether an array is concrete, or belongs to a trace that is active in the current call."""
    trace, current = find_trace(array), find_top_trace(())
    while trace is not None and current is not None and current is not trace:
        current = getattr(current, "parent_trace", None)
    return current is not None


class Linearizing(NamedTuple):
    """Operands of a call under `jax.linearize`, whose trace has two parents (jax#25004).

    Attributes:
        trace: the linearizing trace.
        primal_trace: the trace to which forward belongs: there the arrays of calls outside jit are concrete.
        linear_trace: the trace that collects the linear part.
        perturbed: for each operand whether it is being differentiated.
        primals: the values of the operands.
        tangents: their tangents, or None.
    """

    trace: Any
    primal_trace: Any
    linear_trace: Any
    perturbed: tuple[bool, ...]
    primals: list[Any]
    tangents: list[Any]


def split_linearizing(operands: Sequence[Any]) -> Linearizing | None:
    """Split the operands of a call into values and tangents if the current trace linearizes; else return None."""
    trace = find_top_trace(())
    if not hasattr(trace, "tangent_trace"):
        return None
    perturbed = tuple(isinstance(x, jax.core.Tracer) and getattr(x._trace, "tag", None) is trace.tag for x in operands)
    pairs = [(x.primal, x.tangent) if p else (x, None) for x, p in zip(operands, perturbed, strict=True)]
    return Linearizing(
        trace, trace.parent_trace, trace.tangent_trace, perturbed, [x for x, _ in pairs], [t for _, t in pairs]
    )


def join_linearizing(under: Linearizing, like: Any, outputs: Sequence[Any], tangents: Sequence[Any]) -> list[Any]:
    """Return tracers of values and tangents, of the class of the tracer `like`: that class has no public name."""
    tracer_type = type(like)
    return [x if type(t) is ad.Zero else tracer_type(under.trace, x, t) for x, t in zip(outputs, tangents, strict=True)]


def belongs_above(value: Any) -> bool:
    """Return whether an array is a tracer of an inner transformation that is not current: jax.grad under its jit."""
    trace, here = getattr(value, "_trace", None), find_top_trace(())
    while trace is not None:
        trace = getattr(trace, "parent_trace", None)
        if trace is here:
            return True
    return False


def same_trace(one: Any, other: Any) -> bool:
    """Return whether two arrays are tracers of one trace; for error messages only."""
    return hasattr(one, "_trace") and getattr(other, "_trace", None) is one._trace


@contextmanager
def under_primal_trace(tangents: Sequence[Any]) -> Iterator[None]:
    """Run the block, in a jvp rule, under the trace that forward belongs to.

    When JAX linearizes, it runs jvp rules under a trace that collects the linear part, and in which known
    values turn into tracers; forward belongs to its parent trace, where concrete arrays stay concrete.
    """
    trace = find_top_trace(())
    # A rule that jax.vmap batches runs above that trace, and the primals belong there.
    if not any(isinstance(t, JaxprTracer) and t._trace is trace for t in tangents):
        yield
        return
    with set_current_trace(trace.parent_trace):
        yield


# --- batching and meshes


def is_unnamed(axis: Axis) -> bool:
    """Return whether a batch axis has no name: JAX then names it by a bare `object`."""
    return type(axis.name) is object


def vmap(fun: Callable[..., Any], axis: Axis, dims: tuple[Any, ...]) -> Callable[..., Any]:
    """Return `jax.vmap(fun)` over the axis that a batching rule received, an object with name, size and spmd_name."""
    return jax.vmap(fun, dims, 0, axis_name=axis.name, axis_size=axis.size, spmd_axis_name=axis.spmd_name)


def find_batch_axes(values: Sequence[Any]) -> tuple[list[Any], list[int | None]]:
    """Return values that a function under the current `jax.vmap` computed as whole batches, and their batch axes.

    A value that does not depend on the batch has the axis None, and is returned as it is.
    """
    trace = find_top_trace(())
    pairs = [trace.to_batch_info(x) for x in values]
    return [x for x, _ in pairs], [dim for _, dim in pairs]


def varying(aval: Aval) -> frozenset[Any]:
    """Return the mesh axes on which a value of this type varies inside shard_map."""
    return aval.mat.varying if hasattr(aval, "mat") else frozenset()


def is_sharding_error(error: Exception) -> bool:
    """Return whether JAX could not infer the sharding of an operation's result over Explicit axes."""
    return type(error).__name__ == "ShardingTypeError"  # it has no public name


def is_mesh_error(error: ValueError) -> bool:
    """Return whether an operation received an array whose axis types differ from those of the current mesh."""
    return "context mesh" in str(error).lower()
