"""The user's batching rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax

from fnjax._errors import BatchingError
from fnjax._function.annotated_errors import explained
from fnjax._function.arguments import Arguments
from fnjax._function.outputs import take_outputs
from fnjax._function.spec import Definition
from fnjax._messages.outputs import vmap_out_dims, vmap_returns
from fnjax._primitives.rule import Arrays


class VmapInfo(NamedTuple):
    """Description of the batch that a `vmap` static method receives.

    Attributes:
        batch_size: how many examples there are.
        randomness: always "error": JAX's random keys are explicit arguments.
    """

    batch_size: int
    randomness: str = "error"


def run_vmap(
    definition: Definition,
    arguments: Arguments,
    size: int,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    avals: Sequence[Any],
) -> tuple[Arrays, list[int | None]]:
    """Call `vmap(info, in_dims, *args)`; return the batched outputs and their batch axes.

    Args:
        definition: the class.
        arguments: the arguments of the call, without their arrays.
        size: the size of the batch.
        operands: the batched arrays.
        dims: for each operand its batch axis, or None.
        avals: the types of the outputs for one example.
    """
    assert definition.vmap is not None
    in_dims = tuple(arguments.axes(dims))
    with explained(definition, arguments, definition.vmap, operands):
        returned = definition.vmap(VmapInfo(size), in_dims, *arguments.fill(operands), **arguments.keywords)
    if not isinstance(returned, tuple) or len(returned) != 2:
        raise vmap_returns(definition.vmap, definition.name, returned)
    output, out_dims = returned
    arrays, form = take_outputs(definition, output)
    counts = [member.holes for member in form.members]
    given = out_dims if isinstance(out_dims, tuple) else (out_dims,) * len(counts)
    if len(given) != len(counts) or (form.make is None and isinstance(out_dims, tuple)):
        raise _incompatible(definition, out_dims, f"an output with {len(counts)} member(s)")
    axes = [axis for member, n in zip(given, counts, strict=True) for axis in _axes(definition, member, n)]
    if any(axis is not None and not -x.ndim <= axis < x.ndim for x, axis in zip(arrays, axes, strict=True)):
        raise _incompatible(definition, out_dims, f"outputs of the shapes {[x.shape for x in arrays]}")
    axes = [axis if axis is None else axis % x.ndim for x, axis in zip(arrays, axes, strict=True)]
    wanted = [(a.shape, a.dtype) for a in avals]
    came_types = [(_without(x.shape, axis), x.dtype) for x, axis in zip(arrays, axes, strict=True)]
    if came_types != wanted:
        raise _incompatible(definition, out_dims, f"outputs of {came_types} for one example; forward gives {wanted}")
    if any(axis is not None and x.shape[axis] != size for x, axis in zip(arrays, axes, strict=True)):
        shapes = [x.shape for x in arrays]
        raise _incompatible(
            definition, out_dims, f"outputs of the shapes {shapes}, where the batch has {size} example(s)"
        )
    return arrays, axes


def _axes(definition: Definition, member: Any, count: int) -> list[int | None]:
    leaves = jax.tree.leaves(member, is_leaf=lambda x: x is None)
    if len(leaves) == 1:
        leaves *= count
    if len(leaves) != count or not all(leaf is None or isinstance(leaf, int) for leaf in leaves):
        raise _incompatible(definition, member, f"an output with {count} array(s)")
    return leaves


def _without(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    return tuple(n for i, n in enumerate(shape) if i != axis)


def _incompatible(definition: Definition, out_dims: Any, output: str) -> BatchingError:
    return vmap_out_dims(definition.vmap, definition.name, out_dims, output)
