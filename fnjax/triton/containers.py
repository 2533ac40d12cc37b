"""Tuples and namedtuples of arrays as arguments of a launch: their members are parameters of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from fnjax.triton.interpreter.source import Source
from fnjax.triton.values.affine import Array


def is_array(value: object) -> bool:
    """Return True for arrays of JAX and NumPy, traced ones too."""
    return isinstance(value, jax.Array | np.ndarray) or hasattr(value, "aval")


def iter_members(value: object) -> list[Any]:
    """Return a value, or the members of tuples and lists, however deep."""
    return [leaf for item in value for leaf in iter_members(item)] if isinstance(value, tuple | list) else [value]


class Container(NamedTuple):
    """Tuple or namedtuple that holds arrays: its class, and the names under which its members are parameters."""

    kind: type
    names: tuple[str, ...]

    def filled(self, found: Mapping[str, Any]) -> Any:
        """Return the container with the members that are found by their names."""
        items = [found.get(name) for name in self.names]
        return self.kind(*items) if hasattr(self.kind, "_fields") else self.kind(items)


def open_containers(source: Source, given: dict[str, Any], checked: Callable[..., Any]) -> dict[str, str]:
    """Replace containers of arrays in `given` by a `Container`, and add their members; return these with their owners.

    A member is named as in the kernel: `pair[0]`, or `pair.first` of a namedtuple.

    Args:
        source: the kernel's.
        given: the parameters by name.
        checked: returns an argument ready for a launch.
    """
    members: dict[str, str] = {}
    waiting = [p for p in source.parameters if p not in source.constants]
    while waiting:
        name = waiting.pop(0)
        value = given[name]
        if not isinstance(value, tuple | list) or not any(is_array(leaf) for leaf in jax.tree.leaves(value)):
            continue
        fields = getattr(value, "_fields", None)
        inner = [f"{name}.{fields[i]}" if fields else f"{name}[{i}]" for i in range(len(value))]
        for own, item in zip(inner, value, strict=True):
            given[own] = checked(source.name, own, item, False)
            members[own] = members.get(name, name)
        given[name] = Container(type(value), tuple(inner))
        waiting += inner
    return members


def results_of(source: Source, given: Mapping[str, Any], found: Mapping[str, Array]) -> Any:
    """Return what a launch returns: the stored arrays in the order of parameters, None for parameters that are None.

    A container of arrays comes back as one, with what was stored in place of its arrays.
    """

    def result(parameter: str) -> Any:
        value = given[parameter]
        if isinstance(value, Container):
            return value.filled({name: result(name) for name in value.names})
        return found.get(parameter, None if parameter in source.parameters else value)

    results = tuple(map(result, source.stored))
    return results[0] if len(results) == 1 else results
