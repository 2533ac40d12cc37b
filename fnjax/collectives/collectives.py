"""Collectives of jax.lax with the gradients of PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fnjax._primitives.jax_internals import varying
from fnjax._primitives.sharding import is_in_backward, manual_axes
from fnjax._primitives.tree import map_leaves
from fnjax.collectives.axes import Axis, axis_error, axis_index, axis_of, axis_size
from fnjax.collectives.varying import part, permute

_REDUCED: dict[str, Callable[..., Any]] = {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin, "avg": lax.pmean}


def vary(x: Any, axis: Any) -> Any:
    """Return an array as this device's own copy, whose gradient is partial. The values are the same.

    In PyTorch each process has its own copy of everything. A Function whose `backward` sums the gradient over devices
    needs that here, too: for a replicated `x` (`in_specs` of `P()`), JAX would sum the reduced gradient again. It has
    no effect if `x` varies over the axis already, with `check_vma=False`, inside a `backward` and for non-arrays.

    Args:
        x: an array, or anything else.
        axis: the name of a mesh axis, a tuple of names, or `...` for all axes of the mesh.

    Returns:
        x, which varies over the axis.
    """
    found = tuple(sorted(manual_axes())) if axis is ... else axis_of(axis)
    if not isinstance(x, jax.Array):
        return map_leaves(lambda leaf: vary(leaf, axis), x, lambda leaf: isinstance(leaf, jax.Array))
    if not jnp.issubdtype(x.dtype, jnp.inexact) or is_in_backward():
        return x
    names = (found,) if isinstance(found, str) else found
    missing = tuple(n for n in names if n in manual_axes() and n not in varying(jax.typeof(x)))
    return lax.pcast(x, missing, to="varying") if missing else x


def all_reduce(x: jax.Array, axis: Any, op: str = "sum") -> jax.Array:
    """Return the sum, maximum, minimum, mean (`avg`) or product of the devices' arrays, on each device."""
    found = axis_of(axis)
    if op == "product":
        return jnp.prod(_all_gather(x, found), 0)
    if op not in _REDUCED:
        raise axis_error(f"all_reduce with {op!r}", "sum, max, min, avg or product", op, "compute it from all_gather")
    reduced: jax.Array = _REDUCED[op](x, found)
    return reduced


def reduce(x: jax.Array, dst: Any, axis: Any, op: str = "sum") -> jax.Array:
    """Return all_reduce on the device at index `dst`; the array itself on the others, as NCCL leaves it."""
    return jnp.where(axis_index(axis) == dst, all_reduce(x, axis, op), x)


def all_gather(x: jax.Array, axis: Any) -> list[jax.Array]:
    """Return the devices' arrays, of one shape, as a list. See all_gather_into for its gradient."""
    return list(_all_gather(x, axis_of(axis)))


def all_gather_into(x: jax.Array, axis: Any, dim: int = 0) -> jax.Array:
    """Return the devices' arrays concatenated along a dimension.

    In a `backward` each device then has the whole gradient, which JAX counts once (`to="invarying"`); in a `forward`
    each has its own copy, whose gradients are partial.
    """
    return _all_gather(x, axis_of(axis), axis=dim % max(x.ndim, 1), tiled=True)


def gather_as(like: Any, x: jax.Array, axis: Any) -> jax.Array:
    """Return the devices' arrays in the shape of `like`: concatenated, or stacked.

    Raises:
        AxisError: if `like` has another size.
    """
    found = axis_of(axis)
    if x.ndim and tuple(like.shape) == (x.shape[0] * axis_size(found), *x.shape[1:]):
        return _all_gather(x, found, axis=0, tiled=True).astype(like.dtype)
    stacked = _all_gather(x, found)
    if stacked.size != like.size:
        raise axis_error(
            f"all_gather of shape {x.shape} over {found!r}",
            f"room for {stacked.shape}, or for that many rows",
            f"{tuple(like.shape)}",
            "give the output the size of all slices together",
        )
    return stacked.reshape(like.shape).astype(like.dtype)


def reduce_scatter(x: Any, axis: Any, op: str = "sum", dim: int = 0) -> jax.Array:
    """Return this device's slice of the sum (or `avg`, `max`, `min`) of the devices' arrays.

    Args:
        x: an array whose dimension the axis size divides, or a list of arrays of one shape, one for each device.
        axis: the name of a mesh axis.
        op: the reduction.
        dim: the dimension that is split.
    """
    found = axis_of(axis)
    if isinstance(x, (list, tuple)):
        x, tiled = jnp.stack(_alike(x, found)), False
    else:
        tiled = True
        _divides(x.shape[dim], found, f"dimension {dim} of shape {x.shape}")
    dim %= x.ndim
    if op in {"sum", "avg"}:
        total: jax.Array = lax.psum_scatter(x, found, scatter_dimension=dim, tiled=tiled)
        return total / axis_size(found) if op == "avg" else total
    reduced = all_reduce(x, found, op)
    return part(reduced, axis_index(found), axis_size(found), dim) if tiled else reduced[axis_index(found)]


def scatter_as(like: Any, x: Any, axis: Any, op: str = "sum") -> jax.Array:
    """Apply reduce_scatter with a result in the shape of `like`; `x` is a concatenation or a stack of such arrays."""
    found = axis_of(axis)
    n = axis_size(found)
    if not isinstance(x, (list, tuple)) and x.shape[:1] == (n,) and tuple(like.shape) == x.shape[1:]:
        return reduce_scatter(list(x), found, op).astype(like.dtype)
    return reduce_scatter(x, found, op).reshape(like.shape).astype(like.dtype)


def all_to_all(x: Any, axis: Any, output_sizes: Any = None, input_sizes: Any = None) -> Any:
    """Send slice i of each device's array, or list of arrays of one shape, to device i; return what was received.

    The received slices are in the order of the devices.

    Raises:
        AxisError: for slices of unequal sizes, since arrays have the same shape on all devices.
    """
    found = axis_of(axis)
    if isinstance(x, (list, tuple)):
        return list(lax.all_to_all(jnp.stack(_alike(x, found)), found, 0, 0))
    n = axis_size(found)
    for sizes in (output_sizes, input_sizes):
        if sizes is not None and (len(sizes) not in (0, n) or len({int(s) for s in sizes}) > 1):
            raise axis_error(
                f"all_to_all over {found!r} with slices of unequal sizes",
                "None, or equal sizes",
                f"{list(sizes)}",
                "pad the slices to one size: under jit all devices have arrays of one shape",
            )
    _divides(x.shape[0], found, f"dimension 0 of shape {x.shape}")
    return lax.all_to_all(x, found, 0, 0, tiled=True)


def broadcast(x: jax.Array, src: Any, axis: Any) -> jax.Array:
    """Return the array of the device at index `src`, on all devices."""
    return _all_gather(x, axis_of(axis))[src]


def receive(
    like: jax.Array,
    src: Any,
    sends: Sequence[tuple[jax.Array, Any]],
    axis: Any,
    before: Sequence[tuple[jax.Array, Any]] = (),
) -> jax.Array:
    """Return what each device receives from the device at `src`, where all send several arrays.

    Arrays between two devices are received in the order in which they are sent, as in PyTorch. If `src` sends nothing
    to a device, the device gets NaN, or the dtype's lowest number; PyTorch waits forever.

    Args:
        like: an array of the shape and dtype of the result; sends of other shapes are ignored.
        src: the index of the sender, which each device chooses.
        sends: the arrays that this device sends, and the index of each receiver.
        axis: the name of a mesh axis.
        before: pairs like (`like`, `src`) of what this device received before.

    Raises:
        AxisError: if none of the arrays has the shape of `like`.
    """
    found = axis_of(axis)
    meant = [(x, to) for x, to in sends if jnp.shape(x) == jnp.shape(like)]
    if not meant:
        shapes = f"{[jnp.shape(x) for x, _ in sends]}"
        raise axis_error(f"recv over {found!r}", f"a send of shape {jnp.shape(like)}", shapes, "send what is received")
    arrays, to = (jnp.stack([jnp.asarray(s[i]) for s in meant]) for i in (0, 1))
    reaches = lax.all_gather(to, found)[src] == lax.axis_index(found)
    taken = sum((jnp.asarray(s == src, int) for y, s in before if jnp.shape(y) == jnp.shape(like)), jnp.zeros((), int))
    hits = reaches & (jnp.cumsum(reaches) == taken + 1)
    at = jnp.where(jnp.any(hits), jnp.argmax(hits), len(meant))
    return jnp.take(permute(arrays, src, found), at, axis=0, mode="fill").astype(like.dtype)


def _all_gather(x: jax.Array, over: Axis, **how: Any) -> jax.Array:
    names = {over} if isinstance(over, str) else set(over)
    if is_in_backward() and names <= manual_axes():
        how["to"] = "invarying"
    found: jax.Array = lax.all_gather(x, over, **how)
    return found


def _alike(arrays: Sequence[Any], axis: Axis) -> list[jax.Array]:
    """Return a list of arrays after a check: one for each device, all of one shape."""
    shapes = [jnp.shape(a) for a in arrays]
    if len(arrays) != axis_size(axis) or len(set(shapes)) > 1:
        raise axis_error(
            f"a collective over {axis!r} with a list of arrays",
            f"{axis_size(axis)} of one shape, one for each device",
            f"shapes {shapes}",
            "pad them to one shape: under jit all devices have arrays of one shape",
        )
    return [jnp.asarray(a) for a in arrays]


def _divides(size: int, axis: Axis, what: str) -> None:
    if size % axis_size(axis):
        raise axis_error(
            f"a collective over {axis!r} that cuts {what}",
            f"a multiple of the axis size, {axis_size(axis)}",
            str(size),
            "pad the dimension, or use an axis whose size divides it",
        )
