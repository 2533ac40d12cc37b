"""The user's batching rule."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fnjax._function.annotated_errors import annotated
from fnjax._function.arguments import Arguments
from fnjax._function.forward import split_outputs
from fnjax._function.spec import Spec
from fnjax._primitives.rule import Arrays
from fnjax._primitives.tree import split
from fnjax._primitives.types import Aval
from fnjax.errors import BatchingError, describe, error


class VmapInfo(NamedTuple):
    """Description of the batch that a `vmap` static method receives.

    Attributes:
        batch_size: how many examples there are.
        randomness: always "error": JAX's random keys are explicit arguments.
    """

    batch_size: int
    randomness: str = "error"


def call_vmap(
    spec: Spec,
    arguments: Arguments,
    size: int,
    operands: Sequence[Any],
    dims: Sequence[int | None],
    avals: Sequence[Aval],
) -> tuple[Arrays, list[int | None]]:
    """Call `vmap(info, in_dims, *args)`; return the batched outputs and their batch axes.

    Args:
        spec: of the Function.
        arguments: the arguments of the call, without their arrays.
        size: the size of the batch.
        operands: the batched arrays.
        dims: for each operand its batch axis, or None.
        avals: the types of the outputs for one example.
    """
    assert spec.vmap is not None
    if spec.options.generate_vmap_rule:
        raise error(
            BatchingError,
            f"You tried to vmap over {spec.name}, but it has both generate_vmap_rule=True and an overridden vmap "
            "staticmethod. Please set generate_vmap_rule=False or delete the overridden vmap staticmethod to "
            "avoid ambiguity.",
            "vmap-and-generate",
            method=spec.vmap,
            fix=f"delete {spec.name}.vmap to have JAX batch forward and backward, or generate_vmap_rule to use it",
        )
    with annotated(spec, arguments, spec.vmap, operands):
        info, in_dims, args = VmapInfo(size), tuple(arguments.axes(dims)), arguments.fill(operands)
        if spec.codec is not None:
            returned = spec.codec.vmap(info, in_dims, args)
        else:
            returned = spec.vmap(info, in_dims, *args, **arguments.keywords)
    if not isinstance(returned, tuple) or len(returned) != 2:
        came = f"{len(returned)} returns" if isinstance(returned, tuple) else f"a {type(returned)}"
        raise error(
            BatchingError,
            f"Expected the vmap staticmethod to have two returns, an output and out_dims with pytree structure "
            f"compatible with the output. Got {came} instead ({spec.name}.vmap)",
            "vmap-returns",
            method=spec.vmap,
            got=describe(returned),
            fix="return output, out_dims; out_dims is the batch axis (a tuple of them for several outputs) or None",
        )
    output, out_dims = returned
    arrays, form = split_outputs(spec, output)
    counts = [member.n_arrays for member in form.members]
    member_dims = out_dims if isinstance(out_dims, tuple) else (out_dims,) * len(counts)
    if len(member_dims) != len(counts) or (form.make is None and isinstance(out_dims, tuple)):
        raise _incompatible(spec, out_dims, f"an output with {len(counts)} member(s)")
    axes = [axis for member, n in zip(member_dims, counts, strict=True) for axis in _axes(spec, member, n)]
    if any(axis is not None and not -x.ndim <= axis < x.ndim for x, axis in zip(arrays, axes, strict=True)):
        raise _incompatible(spec, out_dims, f"outputs of the shapes {[x.shape for x in arrays]}")
    axes = [axis if axis is None else axis % x.ndim for x, axis in zip(arrays, axes, strict=True)]
    expected = [(a.shape, a.dtype) for a in avals]
    got = [(_without(x.shape, axis), x.dtype) for x, axis in zip(arrays, axes, strict=True)]
    if got != expected:
        raise _incompatible(spec, out_dims, f"outputs of {got} for one example; forward gives {expected}")
    if any(axis is not None and x.shape[axis] != size for x, axis in zip(arrays, axes, strict=True)):
        shapes = [x.shape for x in arrays]
        raise _incompatible(spec, out_dims, f"outputs of the shapes {shapes}, where the batch has {size} example(s)")
    return arrays, axes


def _axes(spec: Spec, member: Any, count: int) -> list[int | None]:
    leaves, _ = split(member)
    if len(leaves) == 1:
        leaves *= count
    if len(leaves) != count or not all(leaf is None or isinstance(leaf, int) for leaf in leaves):
        raise _incompatible(spec, member, f"an output with {count} array(s)")
    return leaves


def _without(shape: tuple[int, ...], axis: int | None) -> tuple[int, ...]:
    return tuple(n for i, n in enumerate(shape) if i != axis)


def _incompatible(spec: Spec, out_dims: Any, output: str) -> BatchingError:
    return error(
        BatchingError,
        f"The autograd.Function's vmap staticmethod returned an incompatible (output, out_dims) tuple. Expected "
        f"out_dims={out_dims} to be compatible with the structure of `output` ({spec.name}.vmap)",
        "vmap-out-dims",
        method=spec.vmap,
        expected="for each output the axis of its batch, or None",
        got=f"out_dims={out_dims} for {output}",
        fix="return as many out_dims as outputs, each the axis on which that output is batched",
    )
