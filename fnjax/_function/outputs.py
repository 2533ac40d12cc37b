"""Outputs of forward, split into arrays and their structure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fnjax._function.spec import Definition
from fnjax._messages.arguments import refuse_torch
from fnjax._messages.outputs import container_output, number_output
from fnjax._messages.refs import ref_output
from fnjax._primitives.rule import Arrays
from fnjax._primitives.tree import ARRAY, Split, is_array, is_ref, is_tensor, split


class Outputs(NamedTuple):
    """Structure of what `forward` returned.

    Attributes:
        members: the members of the returned tuple (or the one value), without their arrays.
        make: the tuple type that was returned, or None for a single value.
    """

    members: tuple[Split, ...]
    make: Callable[[list[Any]], Any] | None

    def fill(self, arrays: Sequence[Any]) -> Any:
        """Return the outputs with `arrays` in their places."""
        filled = self.each(arrays)
        return filled[0] if self.make is None else self.make(filled)

    def each(self, arrays: Sequence[Any], *otherwise: Any) -> list[Any]:
        """Return the members with `arrays` in their places; `otherwise` replaces everything that is not an array."""
        values = iter(arrays)
        return [m.fill(values, *otherwise) for m in self.members]


_ONE_ARRAY = Outputs((ARRAY,), None)


def take_outputs(definition: Definition, returned: Any) -> tuple[Arrays, Outputs]:
    """Split what forward returned into its arrays, unconverted, and its structure."""
    if is_array(returned):
        return [returned], _ONE_ARRAY
    is_tuple = isinstance(returned, tuple)
    arrays: Arrays = []
    members = []
    for i, member in enumerate(returned if is_tuple else (returned,)):
        where = f"output {i} of {definition.name}.forward"
        refuse_torch(member, where)
        taken, rest = split(member, is_tensor)
        if any(map(is_ref, taken)):
            raise ref_output(definition.forward, where)
        if taken and not is_tensor(member) and not definition.options.pytree:
            raise container_output(definition.forward, where, member, len(taken))
        arrays += taken
        members.append(rest)
    # A named tuple takes its members one by one; its `_make` takes them as a tuple does.
    make = getattr(type(returned), "_make", tuple) if is_tuple else None
    return arrays, Outputs(tuple(members), make)


def refuse_numbers(definition: Definition, returned: Any) -> None:
    """Raise if forward returned Python floats or complex numbers instead of arrays that are being differentiated."""
    members = returned if isinstance(returned, tuple) else (returned,)
    for member in members:
        if isinstance(member, float | complex):
            raise number_output(definition.forward, definition.name, member)
