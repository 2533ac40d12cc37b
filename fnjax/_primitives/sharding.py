"""Meshes: gradients that vary over the devices of a shard_map, and methods on arrays with Explicit axes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
from jax.interpreters import ad
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from fnjax._contexts import IN_BACKWARD
from fnjax._primitives.jax_equations import is_callback
from fnjax._primitives.jax_internals import is_mesh_error, is_sharding_error, is_staged, open_jaxpr, varying
from fnjax._primitives.jaxprs import Marks, iter_equations, programs_in, propagate
from fnjax._primitives.rule import Arrays, LinearMap, Rule
from fnjax._primitives.trace import trace
from fnjax._primitives.tree import is_ref
from fnjax._primitives.types import Aval, Eqn, Jaxpr


def manual_axes() -> frozenset[Any]:
    """Return the mesh axes that the surrounding shard_map splits; those of vmap are not among them."""
    return frozenset(jax.sharding.get_abstract_mesh().manual_axes)


def is_in_backward() -> bool:
    """Return whether backward is running inside shard_map, outside any forward that is being differentiated."""
    return bool(IN_BACKWARD.value)


def vjp_summed(
    vjp: Callable[..., Arrays], cotangents: Sequence[Any], outputs: Sequence[Any], arguments: Sequence[Any], rule: Rule
) -> Arrays:
    """Call `vjp`; inside shard_map sum each gradient over the mesh axes on which its argument does not vary.

    There the cotangent of an output that does not vary is a reduced gradient, and that of one that varies is a partial
    one. A gradient that may depend on both is refused: only the partial part must be summed, and the two cannot be
    separated.

    Args:
        vjp: cotangents → gradients, None for zero.
        cotangents: those of the outputs, or None.
        outputs: the types of the outputs.
        arguments: the types of the arguments.
        rule: builds the errors.
    """
    if jax.sharding.get_abstract_mesh().empty:  # as it is outside of shard_map
        return vjp(*cotangents)
    grads = (_checked(vjp, rule) if any_varies([*outputs, *arguments]) else vjp)(*cotangents)
    # Axes on which a gradient varies and its argument does not come from a partial cotangent or from backward itself.
    # If every output with a cotangent varies on an axis, the gradient is partial; else it may be a sum of both.
    varying_axes = [varying(output) for output, ct in zip(outputs, cotangents, strict=True) if ct is not None]
    in_any, in_all = frozenset().union(*map(varying, outputs)), frozenset.intersection(*varying_axes)
    for grad, argument in zip(grads, arguments, strict=True):
        if grad is not None and (varying(jax.typeof(grad)) - varying(argument) - in_all) & in_any:
            raise rule.error("partial and reduced")
    return [g if g is None else _as_varying_as(a, g) for g, a in zip(grads, arguments, strict=True)]


def _checked(vjp: Callable[..., Arrays], rule: Rule) -> Callable[..., Arrays]:
    """Return `vjp` with a check that no callback in it hides that its result varies over the devices."""

    def checked(*cotangents: Any) -> Arrays:
        traced = trace(f"{rule.name}.backward", vjp, *cotangents)
        if hides_varying(open_jaxpr(traced.jaxpr)):
            raise rule.error("varying callback")
        return list(traced(traced.closed_over, *cotangents))

    return checked


def make_zeros(aval: Aval) -> jax.Array:
    """Return zeros of a type, which says on which mesh axes they vary and how they are sharded."""
    if aval.sharding.mesh == jax.sharding.get_abstract_mesh():
        return ad.zeros_like_aval(aval.update(weak_type=False))
    zeros = ad.zeros_like_aval(jax.core.ShapedArray(aval.shape, aval.dtype))  # the axes may be Auto for a while
    return jax.lax.pcast(zeros, tuple(varying(aval)), to="varying") if varying(aval) else zeros


def any_varies(avals: Iterable[Any]) -> bool:
    """Return whether a value of one of these types varies over some mesh axis."""
    return any(map(varying, avals))


def _as_varying_as(aval: Aval, grad: Any) -> Any:
    """Sum a gradient over the mesh axes on which it varies and its argument does not."""
    on = varying(jax.typeof(grad))
    if extra := tuple(on - varying(aval)):
        grad = jax.lax.psum(grad, extra)
    if missing := tuple(varying(aval) - on):
        grad = jax.lax.pcast(grad, missing, to="varying")
    return grad


def hides_varying(jaxpr: Jaxpr) -> bool:
    """Return whether a result depends on a callback of device-varying values and is not itself marked as varying.

    `jax.pure_callback` carries no mesh axes, so JAX takes its result to be replicated, and would sum its gradient over
    the devices. A `jax.lax.pcast` of the result marks it as varying.
    """
    nothing: frozenset[Any] = frozenset()

    def mark(eqn: Eqn, marks: Marks, inside: Callable[[Marks], Marks | None]) -> Marks:
        """Return for each result the axes on which it varies through a callback, unknown to JAX."""
        results = inside(marks)
        if results is None:
            calls_back = is_callback(eqn) or any(is_callback(e) for p in programs_in(eqn) for e in iter_equations(p))
            operands = (varying(x.aval) for x in eqn.invars if calls_back)
            results = [nothing.union(*marks, *operands)] * len(eqn.outvars)
        return [axes - varying(v.aval) for v, axes in zip(eqn.outvars, results, strict=True)]

    return any(propagate(jaxpr, [nothing] * len(jaxpr.invars), mark, lambda _: nothing))


# --- Explicit axes
#
# With Explicit axes the sharding of an array is part of its type. A backward that contracts over a sharded axis
# (`x.T @ g`) does not specify the sharding of its result, which JAX refuses; and JAX expects each gradient to have the
# sharding of its argument.


def call_sharded(
    rule: Rule, fun: LinearMap, residuals: Sequence[Any], vectors: Sequence[Any], types: Sequence[Aval]
) -> Arrays:
    """Call `fun(residuals, vectors)` and reshard each result to the sharding of its type.

    The function runs unchanged where JAX can infer the shardings of its operations: it may specify some itself
    (`out_sharding`). Where JAX cannot, it runs with Auto axes, and XLA chooses them.

    Args:
        rule: the rule that the function belongs to, for errors.
        fun: a backward or a jvp.
        residuals: its first argument.
        vectors: its second, None among them.
        types: those of the results; that of a result that is None is ignored.
    """
    mesh = _find_explicit_mesh([*types, *map(jax.typeof, [v for v in vectors if v is not None])])
    if mesh is None:
        return fun(residuals, vectors)
    args, staged = (list(residuals), list(vectors)), is_staged()
    # Traced on types first: side effects of the function (writes to a Ref) must not happen twice.
    try:
        traced = trace(rule.name, fun, *args)
    except Exception as e:
        # Outside jit the function may also need concrete values, which it receives below.
        if staged and not is_sharding_error(e):
            raise
        results = _call_auto(mesh, rule, fun, args)
    else:
        results = traced(traced.closed_over, *args) if staged else fun(*args)
    return [x if x is None else _reshard(x, t.sharding, mesh) for x, t in zip(results, types, strict=True)]


def _find_explicit_mesh(types: Sequence[Aval]) -> Any:
    """Return the mesh of the context or, outside `jax.set_mesh`, of these types, if it has Explicit axes; else None."""
    shardings = [getattr(t, "sharding", None) for t in types]  # a Ref's type may have none
    for mesh in (jax.sharding.get_abstract_mesh(), *(s.mesh for s in shardings if isinstance(s, NamedSharding))):
        if AxisType.Explicit in mesh.axis_types:
            return mesh
    return None


def _call_auto(mesh: Any, rule: Rule, fun: LinearMap, args: tuple[Arrays, Arrays]) -> Arrays:
    """Call `fun` with Auto axes, like `jax.sharding.auto_axes`, but allow Ref residuals and results of None."""
    explicit = [a for a, kind in zip(mesh.axis_names, mesh.axis_types, strict=True) if kind is AxisType.Explicit]
    refs = [x for x in args[0] if is_ref(x)]
    values = [ref[...] for ref in refs]
    try:
        with jax.sharding.use_abstract_mesh(mesh.update_axis_types(dict.fromkeys(explicit, AxisType.Auto))):
            stand_ins = [jax.new_ref(_reshard_to_auto(value)) for value in values]
            refs_on_auto = iter(stand_ins)
            residuals = [next(refs_on_auto) if is_ref(x) else _reshard_to_auto(x) for x in args[0]]
            results = fun(residuals, jax.tree.map(_reshard_to_auto, args[1]))
    except ValueError as e:
        if is_mesh_error(e):  # a closed-over array still has Explicit axes
            raise rule.error("explicit axes") from e
        raise
    for ref, value, stand_in in zip(refs, values, stand_ins, strict=True):
        ref[...] = _reshard(jax.freeze(stand_in), jax.typeof(value).sharding, mesh)
    return results


def _reshard_to_auto(x: Any) -> Any:
    return jax.reshard(x, PartitionSpec())


def _reshard(x: Any, sharding: Any, mesh: Any) -> Any:
    """Return an array in a sharding; one on no mesh stands for replicated on `mesh`."""
    if sharding.mesh.empty:  # the sharding of an argument that is on no mesh
        sharding = NamedSharding(mesh, PartitionSpec())
    return x if jax.typeof(x).sharding == sharding else jax.reshard(x, sharding)
