"""Collectives of jax.lax, inside shard_map, for ported code that calls torch.distributed.

These take the name of a mesh axis, or a tuple of names, in place of a process group. Their errors name the Function
that uses a missing axis, and they follow two rules for gradients that `jax.lax` leaves to the caller: see `vary` and
`all_gather`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from fnjax._primitives.jax_internals import varying
from fnjax._primitives.sharding import is_in_backward, manual_axes
from fnjax._primitives.tree import map_leaves
from fnjax.errors import AxisError, error

Axis = str | tuple[str, ...]

_REDUCED: dict[str, Callable[..., Any]] = {"sum": lax.psum, "max": lax.pmax, "min": lax.pmin, "avg": lax.pmean}


def axis_of(axis: Any, *others: Any) -> Axis:
    """Return the mesh axis of a collective: the first of the arguments that is not None.

    Args:
        axis: the name of a mesh axis, a tuple of names, or None.
        others: the alternatives if it is None.

    Raises:
        AxisError: if there is none, or the current mesh has no axis of that name.

    Examples:
        >>> import jax
        >>> from fnjax import collectives
        >>> jax.vmap(lambda x: x / collectives.axis_size("i"), axis_name="i")(jax.numpy.arange(4.0)).tolist()
        [0.0, 0.25, 0.5, 0.75]
    """
    found = next((a for a in (axis, *others) if a is not None), None)
    if found is None:
        raise _error(
            "a collective without a mesh axis",
            "the name of a mesh axis where PyTorch takes a process group",
            "None",
            'pass the name of the axis, or set AXIS_NAME = "name" in the ported module before the first call',
        )
    if not isinstance(found, str) and not (isinstance(found, tuple) and all(isinstance(n, str) for n in found)):
        raise _error(
            "a collective over something other than a mesh axis",
            "the name of a mesh axis, or a tuple of names",
            f"{type(found).__name__} {found!r}",
            "pass the name of the axis where PyTorch passes a process group",
        )
    try:
        lax.axis_size(found)
    except (NameError, AssertionError, ValueError, KeyError):
        mesh = jax.sharding.get_abstract_mesh()
        raise _error(
            f"a collective over the axis {found!r}, which is not there",
            f"to run inside jax.shard_map, over a mesh with the axis {found!r}",
            "no mesh (it runs outside of jax.shard_map)" if mesh.empty else f"a mesh with {mesh.axis_names}",
            "call the Function inside jax.shard_map over a mesh that has the axis, or name one that it has",
        ) from None
    return found


_FOLDERS: dict[str, list[dict[str, Any]]] = {}


def join(folder: str, module: dict[str, Any]) -> None:
    """Register a ported module, so that the modules of its folder share the names of their mesh axes.

    Args:
        folder: the porter's name of the folder.
        module: the module's globals, with AXIS_NAME among them.
    """
    known = [m for m in _FOLDERS.get(folder, []) if m.get("__name__") != module.get("__name__")]
    _FOLDERS[folder] = [*known, module]


def shared(folder: str, name: str) -> Axis | None:
    """Return the AXIS_NAME, or another constant, that a module of a ported folder has set; None if none has.

    Args:
        folder: as for join.
        name: the name of the constant.

    Raises:
        AxisError: if two modules have set it to different axes.
    """
    found = {m[name] for m in _FOLDERS.get(folder, []) if m.get(name) is not None}
    if len(found) > 1:
        raise _error(
            f"{name} that two modules of a folder set", "one value", f"{sorted(map(str, found))}", "set it once"
        )
    return next(iter(found), None)


def axis_size(axis: Any) -> int:
    """Return the number of devices along an axis, a Python int.

    Raises:
        AxisError: see axis_of.
    """
    return int(lax.axis_size(axis_of(axis)))


def axis_index(axis: Any) -> jax.Array:
    """Return the index of this device along an axis: an int32 of shape (), which differs between devices.

    Raises:
        AxisError: see axis_of.
    """
    return lax.axis_index(axis_of(axis))


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
        raise _error(f"all_reduce with {op!r}", "sum, max, min, avg or product", op, "compute it from all_gather")
    reduced: jax.Array = _REDUCED[op](x, found)
    return reduced


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
        raise _error(
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
            raise _error(
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


def permute(x: jax.Array, src: Any, axis: Any) -> jax.Array:
    """Return the array of the device at index `src`, which each device chooses: what it receives in PyTorch."""
    found: jax.Array = lax.all_gather(x, axis_of(axis))
    return found[src]


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
        raise _error(f"recv over {found!r}", f"a send of shape {jnp.shape(like)}", shapes, "send what is received")
    arrays, to = (jnp.stack([jnp.asarray(s[i]) for s in meant]) for i in (0, 1))
    reaches = lax.all_gather(to, found)[src] == lax.axis_index(found)
    taken = sum((jnp.asarray(s == src, int) for y, s in before if jnp.shape(y) == jnp.shape(like)), jnp.zeros((), int))
    hits = reaches & (jnp.cumsum(reaches) == taken + 1)
    at = jnp.where(jnp.any(hits), jnp.argmax(hits), len(meant))
    return jnp.take(permute(arrays, src, found), at, axis=0, mode="fill").astype(like.dtype)


def part(x: jax.Array, index: Any, count: int, dim: int = 0) -> jax.Array:
    """Return one of `count` equal slices of an array along a dimension, by an index that may differ between devices.

    Raises:
        AxisError: if the slices would not be equal.
    """
    size, rest = divmod(x.shape[dim], count)
    if rest:
        raise _error(
            f"one of {count} slices of dimension {dim} of shape {x.shape}, selected by the device",
            "slices of one size",
            f"{x.shape[dim]} entries",
            f"pad the dimension to a multiple of {count}",
        )
    return lax.dynamic_slice_in_dim(x, index * size, size, dim % x.ndim)


def window(x: jax.Array, start: Any, size: int, dim: int = 0) -> jax.Array:
    """Return `x[start : start + size]` along a dimension, for a `start` that may differ between devices.

    Entries beyond the end, which PyTorch drops, are NaN, or the dtype's lowest number.
    """
    return jnp.take(x, start + jnp.arange(int(size)), axis=dim, mode="fill")


def with_window(x: jax.Array, start: Any, size: int, new: Any, dim: int = 0) -> jax.Array:
    """Return an array after `x[start : start + size] = new`, for a `start` that may differ between devices."""
    at = (slice(None),) * (dim % x.ndim) + (start + jnp.arange(int(size)),)
    return x.at[at].set(jnp.asarray(new).astype(x.dtype), mode="drop")


def entry(arrays: Any, index: Any) -> Any:
    """Return an entry of a list of arrays of one shape, or of an array, by an index that may differ between devices.

    Raises:
        AxisError: if the arrays have different shapes.
    """
    if isinstance(arrays, jax.Array):
        return arrays[index]
    shapes = {jnp.shape(a) for a in arrays}
    if len(shapes) > 1:
        raise _error(
            "an entry of a list, selected by the device's index",
            "arrays of one shape",
            f"shapes {sorted(shapes)}",
            "pad them to one shape: under jit all devices run one program",
        )
    return jnp.stack([jnp.asarray(a) for a in arrays])[index]


def with_entry(arrays: Sequence[Any], index: Any, new: Any) -> list[Any]:
    """Return a list of arrays with one entry replaced, at an index that may differ between devices."""
    if any(jnp.shape(a) != jnp.shape(new) for a in arrays):
        entry([*arrays, new], index)  # raises
    return [jnp.where(index == i, new, a) for i, a in enumerate(arrays)]


def cond(predicate: Any, true: Callable[..., Any], false: Callable[..., Any], *operands: Any) -> Any:
    """Apply `jax.lax.cond` for a predicate that may differ between devices: both branches run, with their collectives.

    The result of jax.lax.cond counts as replicated if only its predicate differs between devices (JAX 0.12).
    """
    if_true, if_false = true(*operands), false(*operands)
    return jax.tree.map(lambda a, b: jnp.where(predicate, a, b), if_true, if_false)


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
        raise _error(
            f"a collective over {axis!r} with a list of arrays",
            f"{axis_size(axis)} of one shape, one for each device",
            f"shapes {shapes}",
            "pad them to one shape: under jit all devices have arrays of one shape",
        )
    return [jnp.asarray(a) for a in arrays]


def _divides(size: int, axis: Axis, what: str) -> None:
    if size % axis_size(axis):
        raise _error(
            f"a collective over {axis!r} that cuts {what}",
            f"a multiple of the axis size, {axis_size(axis)}",
            str(size),
            "pad the dimension, or use an axis whose size divides it",
        )


def _error(what: str, expected: str, got: str, fix: str) -> AxisError:
    return error(AxisError, what, "mesh-axes", expected=expected, got=got, fix=fix)  # explain() adds the name


__all__ = [
    "all_gather",
    "all_gather_into",
    "all_reduce",
    "all_to_all",
    "axis_index",
    "axis_of",
    "axis_size",
    "broadcast",
    "cond",
    "entry",
    "gather_as",
    "join",
    "part",
    "permute",
    "receive",
    "reduce_scatter",
    "scatter_as",
    "shared",
    "vary",
    "window",
    "with_entry",
    "with_window",
]
