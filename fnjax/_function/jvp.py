"""Call of the user's jvp, and checks of its tangents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from fnjax._function.annotated_errors import annotated
from fnjax._function.backward import BackwardSpec
from fnjax._primitives.jax_internals import cast_to_type
from fnjax._primitives.rule import Arrays
from fnjax._primitives.sharding import make_zeros
from fnjax._primitives.tree import Split, is_inexact, is_tensor, split, to_tensor
from fnjax.errors import GradientError, describe, error, type_name


def call_jvp(backward_spec: BackwardSpec, residuals: Sequence[Any], tangents: Sequence[Any]) -> Arrays:
    """Compute the jvp with the user's method: residuals, tangents → tangents of the outputs; None means zero."""
    spec, form = backward_spec.spec, backward_spec.form
    assert spec.jvp is not None
    ctx = backward_spec.saved.restore(spec, residuals, for_jvp=True)
    materialized = [
        make_zeros(aval) if t is None and backward_spec.saved.materialize and is_inexact(aval) else t
        for t, aval in zip(tangents, backward_spec.operands, strict=True)
    ]
    with annotated(spec, backward_spec.arguments, spec.jvp, n_saved=len(backward_spec.saved.for_forward)):
        given = backward_spec.arguments.tangents(materialized)
        returned = spec.jvp(ctx, *given) if spec.codec is None else spec.codec.jvp(ctx, given)
    # A tuple is several tangents, unless forward returned one pytree, which may be a tuple itself.
    is_many = isinstance(returned, tuple) and (form.make is not None or not spec.options.pytree)
    members = returned if is_many else (returned,)
    n = len(form.members)
    if len(members) != n:
        got = len(returned) if isinstance(returned, tuple) else 1
        fix = "return a tuple of that length, or the one tangent by itself"
        if isinstance(returned, list):
            fix = "return a tuple: a list counts as one tangent, as in PyTorch"
        raise error(
            GradientError,
            f"{spec.name}'s jvp returned an invalid number of forward gradients (expected {n} but got {got})",
            "number-of-tangents",
            method=spec.jvp,
            expected=f"one tangent for each output of {spec.name}.forward, None where there is none",
            got=describe(returned),
            fix=fix,
        )
    result: Arrays = []
    for i, (member, rest) in enumerate(zip(members, form.members, strict=True)):
        leaves = [None] * rest.n_arrays if member is None else _match_tangents(backward_spec, member, rest, i)
        for leaf in leaves:
            result.append(_validate_tangent(backward_spec, leaf, len(result), i))
    return result


def _match_tangents(backward_spec: BackwardSpec, member: Any, form: Split, output: int) -> Arrays:
    """Return the tangents of the arrays of one output."""
    if not form.n_arrays:
        raise _extra_tangent(backward_spec, output, member)
    leaves = form.match(member)
    if leaves is None:
        raise error(
            GradientError,
            f"{backward_spec.spec.name}.jvp returned a tangent of another structure for output {output}",
            "tangent-structure",
            method=backward_spec.spec.jvp,
            expected=str(form),
            got=str(split(member)[1]),
            fix="return a container like the output, None in place of whatever has no tangent",
        )
    return leaves


def _validate_tangent(backward_spec: BackwardSpec, tangent: Any, leaf: int, output: int) -> Any:
    """Check one tangent and cast it to the dtype of its output."""
    aval, name, jvp = backward_spec.outputs[leaf], backward_spec.spec.name, backward_spec.spec.jvp
    if tangent is None:
        return None
    if not backward_spec.differentiable[leaf]:
        raise _extra_tangent(backward_spec, output, tangent)
    if not is_tensor(tangent):
        raise error(
            GradientError,
            f"{name}.jvp: expected Variable or None (got {type_name(tangent)}) for grad output {output}.",
            "tangent-type",
            method=jvp,
            expected=f"an array of shape {aval.shape}, or None",
            got=describe(tangent),
            fix="return an array",
        )
    tangent = to_tensor(tangent)
    if tangent.shape != aval.shape:
        raise error(
            GradientError,
            "Trying to set a forward gradient that has a different size than that of the original Tensor, this is "
            f"not supported. Tensor is of size {list(aval.shape)} while the given forward gradient is of size "
            f"{list(tangent.shape)}. ({name}.jvp, output {output})",
            "tangent-shape",
            method=jvp,
            expected=f"shape {aval.shape}",
            got=f"shape {tangent.shape}",
            fix="return a tangent of the output's own shape; jnp.broadcast_to(tangent, shape) makes it larger",
        )
    if jnp.issubdtype(tangent.dtype, jnp.complexfloating) > jnp.issubdtype(aval.dtype, jnp.complexfloating):
        raise error(
            GradientError,
            f"{name}.jvp returned a complex tangent for output {output}, which is real",
            "tangent-type",
            method=jvp,
            expected=f"dtype {aval.dtype}",
            got=f"dtype {tangent.dtype}",
            fix="return tangent.real",
        )
    return cast_to_type(tangent, aval)


def _extra_tangent(backward_spec: BackwardSpec, output: int, tangent: object) -> GradientError:
    """Build the error for a tangent of an output that has no derivative."""
    return error(
        GradientError,
        f"{backward_spec.spec.name}'s jvp returned a gradient at position {output}, but the corresponding forward "
        "output is not a differentiable Tensor. You should return None at that position instead.",
        "tangent-for-constant",
        method=backward_spec.spec.jvp,
        expected="None",
        got=describe(tangent),
        fix="return None in its place",
    )
