"""Call of the user's jvp, and checks of its tangents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from fnjax._function.annotated_errors import explained
from fnjax._function.backward import Record
from fnjax._messages.outputs import (
    complex_tangent,
    surplus_tangent,
    tangent_shape,
    tangent_structure,
    tangent_type,
    wrong_number_of_tangents,
)
from fnjax._primitives.rule import Arrays
from fnjax._primitives.sharding import make_zeros
from fnjax._primitives.tree import Split, flatten, is_inexact, is_tensor, to_tensor


def push(record: Record, residuals: Sequence[Any], tangents: Sequence[Any]) -> Arrays:
    """Compute the jvp with the user's method: residuals, tangents → tangents of the outputs; None means zero."""
    definition, form = record.definition, record.form
    assert definition.jvp is not None
    ctx = record.saved.restore(definition.make_ctx, residuals, for_jvp=True)
    given = [_tangent(record, t, aval) for t, aval in zip(tangents, record.operands, strict=True)]
    with explained(definition, record.arguments, definition.jvp, (), len(record.saved.for_forward)):
        returned = definition.jvp(ctx, *record.arguments.tangents(given))
    # A tuple is several tangents, unless forward returned one pytree, which may be a tuple itself.
    is_many = isinstance(returned, tuple) and (form.make is not None or not definition.options.pytree)
    members = returned if is_many else (returned,)
    if len(members) != len(form.members):
        raise wrong_number_of_tangents(definition.jvp, definition.name, len(form.members), returned)
    result: Arrays = []
    for i, (member, split) in enumerate(zip(members, form.members, strict=True)):
        leaves = [None] * split.holes if member is None else _take_leaves(record, member, split, i)
        for leaf in leaves:
            result.append(_take_tangent(record, leaf, len(result), i))
    return result


def _tangent(record: Record, tangent: Any, aval: Any) -> Any:
    if tangent is None and record.saved.materialize and is_inexact(aval):
        return make_zeros(aval)
    return tangent


def _take_leaves(record: Record, member: Any, form: Split, output: int) -> Arrays:
    definition = record.definition
    if not form.holes:
        raise surplus_tangent(definition.jvp, definition.name, output, member)
    leaves = form.take(member)
    if leaves is None:
        raise tangent_structure(definition.jvp, definition.name, output, form.treedef, flatten(member)[1])
    return leaves


def _take_tangent(record: Record, tangent: Any, leaf: int, output: int) -> Any:
    """Check one tangent and cast it to the dtype of its output."""
    aval, name, jvp = record.outputs[leaf], record.definition.name, record.definition.jvp
    if tangent is None:
        return None
    if not record.differentiable[leaf]:
        raise surplus_tangent(jvp, name, output, tangent)
    if not is_tensor(tangent):
        raise tangent_type(jvp, name, output, aval.shape, tangent)
    tangent = to_tensor(tangent)
    if tangent.shape != aval.shape:
        raise tangent_shape(jvp, name, output, aval.shape, tangent.shape)
    if jnp.issubdtype(tangent.dtype, jnp.complexfloating) > jnp.issubdtype(aval.dtype, jnp.complexfloating):
        raise complex_tangent(jvp, name, output, aval.dtype, tangent.dtype)
    return tangent.astype(aval.dtype)
