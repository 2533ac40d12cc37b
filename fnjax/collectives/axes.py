"""Mesh axes in place of process groups."""

from __future__ import annotations

from typing import Any

import jax
from jax import lax

from fnjax.errors import AxisError, error

Axis = str | tuple[str, ...]


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
        raise axis_error(
            "a collective without a mesh axis",
            "the name of a mesh axis where PyTorch takes a process group",
            "None",
            'pass the name of the axis, or set AXIS_NAME = "name" in the ported module before the first call',
        )
    if not isinstance(found, str) and not (isinstance(found, tuple) and all(isinstance(n, str) for n in found)):
        raise axis_error(
            "a collective over something other than a mesh axis",
            "the name of a mesh axis, or a tuple of names",
            f"{type(found).__name__} {found!r}",
            "pass the name of the axis where PyTorch passes a process group",
        )
    try:
        lax.axis_size(found)
    except (NameError, AssertionError, ValueError, KeyError):
        mesh = jax.sharding.get_abstract_mesh()
        raise axis_error(
            f"a collective over the axis {found!r}, which is not there",
            f"to run inside jax.shard_map, over a mesh with the axis {found!r}",
            "no mesh (it runs outside of jax.shard_map)" if mesh.empty else f"a mesh with {mesh.axis_names}",
            "call the Function inside jax.shard_map over a mesh that has the axis, or name one that it has",
        ) from None
    return found


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


def axis_error(what: str, expected: str, got: str, fix: str) -> AxisError:
    """Build the error for a collective that cannot be computed over its axis; `annotate` adds the Function's name."""
    return error(AxisError, what, "mesh-axes", expected=expected, got=got, fix=fix)
