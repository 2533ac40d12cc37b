"""fnjax_linear: residuals, tangents → tangents of the outputs, where a Function is differentiated.

It transposes into `backward`, and runs `jvp` or the transpose of `backward`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import Primitive, unmapped_aval
from jax.interpreters import ad, batching, mlir
from jax.interpreters.partial_eval import partial_eval_jaxpr_custom_rules

from fnjax._primitives.batching import batch, batched_derivative
from fnjax._primitives.checkify import check_with
from fnjax._primitives.jax_internals import (
    UNKNOWN_PROGRAM,
    is_in_kernel,
    is_transformed,
    is_unnamed,
    keeps_kernel,
    lacks_token,
    make_cache_anchor,
    opened_by,
)
from fnjax._primitives.jaxprs import BACKWARD
from fnjax._primitives.linear_transpose import mark_as_of_a_method, transpose
from fnjax._primitives.partial_eval import save_residuals
from fnjax._primitives.rule import Arrays, Derivative, ForwardResult, LinearMap, Method, Needs, Rule, merge, select
from fnjax._primitives.sharding import call_sharded, vjp_summed
from fnjax._primitives.tracebacks import hide_frames
from fnjax._primitives.tree import is_inexact, is_ref, to_tensor, to_tensors
from fnjax._primitives.types import Aval, Axis

linear_p = Primitive(BACKWARD)
linear_p.multiple_results = True


def bind_linear(result: ForwardResult, residuals: Arrays, needs: Needs, tangents: Sequence[Any], rule: Rule) -> Arrays:
    """Return the tangents of the outputs, by one equation; those without a derivative are symbolic zeros."""
    differentiable = result.derivative.differentiable
    avals = [jax.typeof(x).to_tangent_aval() for x in result.outputs]
    dense = iter(())
    if any(differentiable):
        vectors = [t for t, need in zip(tangents, needs, strict=True) if need]
        types = [a for a, d in zip(avals, differentiable, strict=True) if d]
        dense = iter(_bind(result.derivative, residuals, vectors, needs, types, rule))
    return [next(dense) if d else ad.Zero(a) for a, d in zip(avals, differentiable, strict=True)]


def bind_transposed(
    derivative: Derivative,
    residuals: Arrays,
    needs: Needs,
    types: Sequence[Aval],
    cotangents: Sequence[Any],
    rule: Rule,
) -> Arrays:
    """Return the gradients of a linear Function by one equation, whose own transpose is forward again.

    Args:
        derivative: that of the Function.
        residuals: its residuals.
        needs: for each operand whether it needs a gradient.
        types: the types of those that do.
        cotangents: those of all outputs, symbolic zeros among them; None for one without a gradient.
        rule: of the Function.
    """
    present = tuple(
        [d and type(ct) is not ad.Zero for ct, d in zip(cotangents, derivative.differentiable, strict=True)]
    )
    if not any(present):
        return [ad.Zero(t.to_ct_aval()) for t in types]
    transposed = dataclasses.replace(derivative, differentiable=needs, vjp=derivative.jvp, jvp=derivative.vjp)
    return _bind(transposed, residuals, select(cotangents, present), present, [t.to_ct_aval() for t in types], rule)


def _bind(
    derivative: Derivative, residuals: Arrays, vectors: Sequence[Any], needs: Needs, avals: Sequence[Aval], rule: Rule
) -> Arrays:
    """Bind the equation of a derivative, whose results have the types `avals`; `needs` says which vectors it has."""
    results: Arrays = linear_p.bind(
        *residuals,
        *vectors,
        derivative=derivative,
        needs=needs,
        avals=tuple(avals),
        rule=rule,
        opened=any(map(is_ref, residuals)),
        cache_anchor=make_cache_anchor(),
        **UNKNOWN_PROGRAM,
    )
    return results


def jvp_of_perturbed(fun: Callable[..., Any], primals: Sequence[Any], tangents: Sequence[Any]) -> tuple[Arrays, Arrays]:
    """Apply `jax.jvp` in the perturbed arguments only, those whose tangents are not symbolic zeros."""
    perturbed = [type(t) is not ad.Zero for t in tangents]

    def of_perturbed(*xs: Any) -> Arrays:
        values = iter(xs)
        return list(fun(*[next(values) if m else x for m, x in zip(perturbed, primals, strict=True)]))

    return jax.jvp(of_perturbed, select(primals, perturbed), select(tangents, perturbed))


@keeps_kernel
def _evaluate(*args: Any, derivative: Derivative, needs: Needs, avals: Sequence[Aval], rule: Rule, **_: Any) -> Arrays:
    """Compute forward mode: the user's jvp, or the transpose of backward."""
    n_residuals = len(derivative.sources)
    residuals, tangents = to_tensors(args[:n_residuals]), to_tensors(args[n_residuals:])
    try:
        if derivative.jvp is not None:  # the user's jvp takes precedence over the transpose of backward
            jvp = _restrict(rule, derivative.jvp, residuals, needs, derivative.differentiable, avals)
            if derivative.is_linear:  # which may be a transpose: a sum over the devices that share an argument
                results = vjp_summed(jvp, tangents, [*map(jax.typeof, tangents)], avals, rule)
            else:
                results = jvp(*tangents)
            return [ad.zeros_like_aval(a) if x is None else x for x, a in zip(results, avals, strict=True)]
        types = [jax.typeof(t).to_ct_aval() for t in tangents]
        vjp = _restrict(rule, derivative.vjp, residuals, derivative.differentiable, needs, types)
        cotangents = [a.to_ct_aval() for a in avals]
        return transpose(lambda *cts: vjp_summed(vjp, cts, avals, types, rule), cotangents, tangents, rule, "backward")
    except Exception as e:
        hide_frames(e)
        raise


def _transpose(
    cotangents: Sequence[Any],
    *args: Any,
    derivative: Derivative,
    needs: Needs,
    avals: Sequence[Aval],
    rule: Rule,
    **params: Any,
) -> list[Any]:
    """Compute reverse mode: the user's backward, or the transpose of jvp."""
    n_residuals = len(derivative.sources)
    if any(map(ad.is_undefined_primal, args[:n_residuals])):
        params |= {"derivative": derivative, "needs": needs, "avals": avals, "rule": rule}
        return _transpose_residuals(cotangents, args, **params)
    residuals, types = _add_barrier(to_tensors(args[:n_residuals])), [t.aval for t in args[n_residuals:]]
    grads: Sequence[Any] = [None] * len(types)  # and `types` are those of the gradients
    # Without any cotangent JAX expects zeros; the user's backward is not called, as in PyTorch.
    if any(type(ct) is not ad.Zero for ct in cotangents):
        try:
            if derivative.is_linear:
                cotangents = merge(cotangents, derivative.differentiable)
                grads = bind_transposed(derivative, residuals, needs, types, cotangents, rule)
            elif derivative.vjp is not None:
                cotangents = [None if type(ct) is ad.Zero else ct for ct in cotangents]
                cotangents = [
                    ct if ct is None or isinstance(ct, jax.core.Tracer) else to_tensor(ct) for ct in cotangents
                ]
                vjp = _restrict(rule, derivative.vjp, residuals, derivative.differentiable, needs, types)
                grads = vjp_summed(vjp, cotangents, avals, types, rule)
            else:
                jvp = _restrict(rule, derivative.jvp, residuals, needs, derivative.differentiable, avals)
                tangents = [t.to_ct_aval() for t in types]  # their cotangents have the gradients' types
                grads = transpose(jvp, tangents, [ad.instantiate_zeros(ct) for ct in cotangents], rule, "jvp")
        except Exception as e:
            hide_frames(e)
            raise
    return [None] * n_residuals + [ad.Zero(t) if g is None else g for g, t in zip(grads, types, strict=True)]


def _transpose_residuals(cotangents: Sequence[Any], args: Sequence[Any], **params: Any) -> list[Any]:
    """Transpose forward mode in residuals, in which it is linear as well: the derivative of a bilinear Function."""
    linear = [ad.is_undefined_primal(x) for x in args]

    def run(*xs: Any) -> Arrays:
        vectors = iter(xs)
        results: Arrays = _evaluate(*[next(vectors) if u else x for x, u in zip(args, linear, strict=True)], **params)
        return results

    types, derivative = [x.aval for x in select(args, linear)], params["derivative"]
    method: Method = "backward" if derivative.jvp is None else "jvp"
    cotangents = [*map(ad.instantiate_zeros, cotangents)]
    return merge(transpose(run, types, cotangents, params["rule"], method), linear)


def _restrict(
    rule: Rule,
    fun: LinearMap | None,
    residuals: Arrays,
    present: Sequence[bool],
    needed: Sequence[bool],
    types: Sequence[Aval],
) -> Callable[..., Arrays]:
    """Return a rule's vjp or jvp as a function of vectors.

    Args:
        rule: the rule.
        fun: its vjp or jvp.
        residuals: the residuals.
        present: for each vector of `fun` whether it is an argument; the others are None.
        needed: for each result of `fun` whether it is returned.
        types: the types of the results; a result may be None.
    """
    assert fun is not None

    def call_method(residuals: Sequence[Any], vectors: Sequence[Any]) -> Arrays:
        values = iter(vectors)
        try:
            results = fun(residuals, [next(values) if p else None for p in present])
        except Exception as e:
            mark_as_of_a_method(e)
            raise
        return [x for x, n in zip(results, needed, strict=True) if n]

    return lambda *vectors: call_sharded(rule, call_method, residuals, vectors, types)


def _add_barrier(residuals: Arrays) -> Arrays:
    """Return the residuals after an optimization barrier, so that XLA recomputes what backward computes from them.

    Without it XLA merges this with what forward computed, keeps these values instead, and recomputing saves no memory
    (docs/guides/saving-and-memory.md; jax#13999). Masks and integers have a barrier of their own: after one with arrays
    that are differentiated JAX 0.10 gives them tangents (jax#39429), for which jnp.all has no rule. Pallas has no
    barrier, and XLA does not see what Pallas compiles.
    """
    if is_in_kernel():
        return residuals
    results, inexact, others = list(residuals), [], []
    for i, x in enumerate(residuals):
        if isinstance(x, jax.core.Tracer):
            if is_inexact(x):
                inexact.append(i)
            elif not is_ref(x):
                others.append(i)
    for group in (inexact, others):
        barrier = jax.lax.optimization_barrier([residuals[i] for i in group]) if group else ()
        for i, x in zip(group, barrier, strict=True):
            results[i] = x
    return results


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], **params: Any) -> tuple[Arrays, Arrays]:
    """Differentiate the derivative of a call: it is linear in its tangents, and JAX differentiates it in residuals."""
    derivative = params["derivative"]
    n_residuals = len(derivative.sources)
    results = linear_p.bind(*primals, **params)
    # Linear in the other operands, and it must stay linear for the transpose.
    if all(type(t) is ad.Zero for t in tangents[:n_residuals]):
        filled = [ad.instantiate_zeros(t) for t in tangents[n_residuals:]]
        return results, linear_p.bind(*primals[:n_residuals], *filled, **params)
    if derivative.is_linear:
        raise params["rule"].error("linear parameter")
    _, dots = jvp_of_perturbed(functools.partial(_evaluate, **params), primals, tangents)
    return results, dots


def _batch(
    axis: Axis,
    args: Sequence[Any],
    dims: Sequence[int | None],
    *,
    derivative: Derivative,
    needs: Needs,
    avals: Any,
    **params: Any,
) -> tuple[Arrays, list[int | None]]:
    """Batch the derivative of a call: compute it outside jit, otherwise bind the equation of a batch."""
    # If nothing is batched the equation stays as it is for one example. Backward may refer to a named axis, which
    # cannot be known before it is called.
    if all(dim is None for dim in dims) and is_unnamed(axis):
        results = linear_p.bind(*args, derivative=derivative, needs=needs, avals=avals, **params)
        return results, [None] * len(results)
    n_residuals = len(derivative.sources)
    axes: list[int | None] = [0] * len(avals)

    def run() -> Arrays:
        call = functools.partial(_evaluate, derivative=derivative, needs=needs, avals=avals, **params)
        results, axes[:] = batch(lambda xs: call(*xs), axis, args, dims)
        return results

    if not is_transformed():
        return run(), axes
    # A tangent of a batch of residuals may still not depend on the batch: that of an output which is unbatched itself.
    if None in dims[n_residuals:] or not is_unnamed(axis):
        jax.eval_shape(run)
    vector_dims, output_dims = merge(dims[n_residuals:], needs), merge(axes, derivative.differentiable)
    results = linear_p.bind(
        *args,
        derivative=batched_derivative(derivative, axis, dims[:n_residuals], vector_dims, output_dims),
        needs=needs,
        avals=tuple(
            unmapped_aval(axis.size, dim, a, axis.explicit_mesh_axis) for dim, a in zip(axes, avals, strict=True)
        ),
        **params,
    )
    return results, axes


_lower_evaluate = mlir.lower_fun(_evaluate, multiple_results=True)


def _lower(ctx: mlir.LoweringRuleContext, *args: Any, rule: Rule, **params: Any) -> Any:
    """Lower the operations of a derivative inline."""
    # The effects of jvp are not among those of the equation: to know them, jvp would have to be traced wherever a call
    # is differentiated, in reverse mode too. So there is no token for an ordered one; the others need none.
    try:
        return _lower_evaluate(ctx, *args, rule=rule, **params)
    except KeyError as e:
        if lacks_token(e):
            raise rule.error("ordered effect") from e
        raise


linear_p.def_impl(_evaluate)
opened_by(linear_p, _evaluate)
partial_eval_jaxpr_custom_rules[linear_p] = save_residuals
check_with(
    linear_p,
    _evaluate,
    lambda derivative, needs, **_: len(derivative.sources) + sum(needs),
    lambda **_: UNKNOWN_PROGRAM,
)
linear_p.def_abstract_eval(lambda *_, avals, **__: avals)
ad.primitive_transposes[linear_p] = _transpose
ad.primitive_jvps[linear_p] = _jvp
batching.fancy_primitive_batchers[linear_p] = _batch
mlir.register_lowering(linear_p, _lower, cacheable=False)
