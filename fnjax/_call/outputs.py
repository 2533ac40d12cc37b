"""What forward returned, taken apart into arrays and their form."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fnjax._errors import OutputError, error, type_name
from fnjax._jax.rule import Arrays
from fnjax._jax.trees import ARRAY, Split, is_array, is_tensor, refuse_torch, split
from fnjax._methods import Methods


class Outputs(NamedTuple):
    """The form of what `forward` returned.

    Attributes:
        members: the members of the returned tuple (or the one value), without their arrays.
        make: the tuple type that was returned, or None for a single value.
    """

    members: tuple[Split, ...]
    make: Callable[[list[Any]], Any] | None

    def fill(self, arrays: Sequence[Any]) -> Any:
        """The value with `arrays` in place."""
        filled = self.each(arrays)
        return filled[0] if self.make is None else self.make(filled)

    def each(self, arrays: Sequence[Any], *otherwise: Any) -> list[Any]:
        """The members with `arrays` in place; `otherwise` replaces what is no array."""
        values = iter(arrays)
        return [m.fill(values, *otherwise) for m in self.members]


_ONE_ARRAY = Outputs((ARRAY,), None)


def take_outputs(methods: Methods, returned: Any) -> tuple[Arrays, Outputs]:
    """The arrays that forward returned, as they came, and the form that they stood in."""
    if is_array(returned):
        return [returned], _ONE_ARRAY
    is_tuple = isinstance(returned, tuple)
    arrays: Arrays = []
    members = []
    for i, member in enumerate(returned if is_tuple else (returned,)):
        where = f"output {i} of {methods.name}.forward"
        refuse_torch(member, where)
        taken, rest = split(member, is_tensor)
        if taken and not is_tensor(member) and not methods.pytree:
            raise error(
                OutputError,
                f"{where} is a {type_name(member)} that holds arrays; return a tuple",
                "container-output",
                method=methods.forward,
                expected="an array, or a tuple of arrays and static values",
                got=f"{type_name(member)} with {len(taken)} array(s); PyTorch would cut their gradients in silence",
                fix="return a tuple, or set `pytree = True` on the class to have containers traversed",
            )
        arrays += taken
        members.append(rest)
    make = getattr(type(returned), "_make", tuple) if is_tuple else None
    return arrays, Outputs(tuple(members), make)
