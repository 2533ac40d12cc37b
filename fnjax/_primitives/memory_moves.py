"""fnjax_move: transfer of arrays to another memory, such as the host's, with a transpose.

The transpose of `jax.device_put(x, jax.memory.Space.Host)` is wrong in JAX 0.10 to 0.12: the cotangent of an array on
the device stays in the host's memory, where a second derivative fails on it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Primitive, jaxpr_as_fun
from jax.interpreters import ad, batching, mlir

from fnjax._primitives.jax_internals import destinations, lower_in_place, open_jaxpr
from fnjax._primitives.rule import Arrays, merge, select
from fnjax._primitives.trace import trace
from fnjax._primitives.types import Aval

move_p = Primitive("fnjax_move")
move_p.multiple_results = True


def with_moves(closed: ClosedJaxpr) -> ClosedJaxpr:
    """Return the same program with a transpose for each `device_put` into another memory."""
    jaxpr = open_jaxpr(closed)
    eqns = [
        eqn.replace(primitive=move_p, params=_params([v.aval for v in eqn.invars], destinations(eqn)))
        if eqn.primitive.name == "device_put" and _spaces(eqn.invars) != _spaces(eqn.outvars)
        else eqn
        for eqn in jaxpr.eqns
    ]
    return ClosedJaxpr(jaxpr.replace(eqns=eqns), closed.consts)


def move_to(memory: Any, arrays: Sequence[Any]) -> Arrays:
    """Return the arrays, moved to a memory unless they are in it."""
    return [x if jax.typeof(x).memory_space == memory else _move([x], [memory])[0] for x in arrays]


def _spaces(variables: Sequence[Any]) -> list[Any]:
    return [v.aval.memory_space for v in variables]


def _params(avals: Sequence[Aval], to: Sequence[Any]) -> dict[str, Any]:
    """Return the parameters of an equation; its program contains the `device_put`, which JAX needs to lower it."""

    def put(*arrays: Any) -> Arrays:
        return [jax.device_put(x, place) for x, place in zip(arrays, to, strict=True)]

    return {"to": tuple(to), "program": trace("move", put, *avals).jaxpr}


def _move(arrays: Sequence[Any], to: Sequence[Any]) -> Arrays:
    """Move each array to its destination, by one equation."""
    moved: Arrays = move_p.bind(*arrays, **_params([*map(jax.typeof, arrays)], to))
    return moved


def _transpose(cotangents: Sequence[Any], *operands: Any, **_: Any) -> Arrays:
    """Move the cotangents back to the memories of the operands."""
    present = [type(ct) is not ad.Zero for ct in cotangents]
    back = _move(select(cotangents, present), [x.aval.memory_space for x in select(operands, present)])
    zeros = [ad.Zero(x.aval) for x in operands]
    return [z if x is None else x for x, z in zip(merge(back, present), zeros, strict=True)]


ad.deflinear2(move_p, _transpose)
batching.primitive_batchers[move_p] = lambda arrays, dims, *, to, program: (_move(arrays, to), dims)
move_p.def_impl(lambda *arrays, program, **_: jaxpr_as_fun(program)(*arrays))
move_p.def_abstract_eval(lambda *_, program, **__: program.out_avals)
mlir.register_lowering(move_p, lambda ctx, *arrays, program, **_: lower_in_place(ctx, program, arrays))
