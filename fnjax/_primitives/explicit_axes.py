"""Meshes with Explicit axes: methods written for one device return results with the shardings that JAX expects.

With Explicit axes the sharding of an array is part of its type. A backward that contracts over a sharded axis
(`x.T @ g`) does not specify the sharding of its result, which JAX refuses; and JAX expects each gradient to have the
sharding of its argument.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from fnjax._primitives.jax_internals import is_mesh_error, is_sharding_error, is_staged
from fnjax._primitives.rule import Arrays, LinearMap, Rule
from fnjax._primitives.trace import trace
from fnjax._primitives.tree import is_ref


def call_sharded(
    rule: Rule, fun: LinearMap, residuals: Sequence[Any], vectors: Sequence[Any], types: Sequence[Any]
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
        results = traced(traced.captured, *args) if staged else fun(*args)
    return [x if x is None else _reshard(x, t.sharding, mesh) for x, t in zip(results, types, strict=True)]


def _find_explicit_mesh(types: Sequence[Any]) -> Any:
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
            given = iter(stand_ins)
            residuals = [next(given) if is_ref(x) else _reshard_to_auto(x) for x in args[0]]
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
    if sharding.mesh.empty:  # the sharding of an argument that is on no mesh
        sharding = NamedSharding(mesh, PartitionSpec())
    return x if jax.typeof(x).sharding == sharding else jax.reshard(x, sharding)
