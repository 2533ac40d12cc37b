"""Variables of a loop, and other places that an iteration changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from fnjax.torch.control.state.effects import describe_place
from fnjax.torch.control.state.places import CELL, GLOBALS, TENSOR, Content, Globals, Kind
from fnjax.torch.control.state.state import State
from fnjax.torch.errors import NotSupported


class Variables:
    """Variables of a loop: those that its closures write, and other places that an iteration changes.

    Args:
        written: a function that closes over the variables. It is not called: its closure cells are read and written.
        own: a function that closes over variables of the runtime, likewise.
    """

    def __init__(self, written: Callable[[], Any], own: Callable[[], Any]) -> None:
        code = written.__code__
        cells = [*(own.__closure__ or ()), *(written.__closure__ or ())]
        self._places: list[tuple[Any, Kind, Any]] = [(cell, CELL, "") for cell in cells]
        self._places += [(Globals(written.__globals__, [n]), GLOBALS, n) for n in code.co_names]
        names = [*own.__code__.co_freevars, *code.co_freevars, *code.co_names]
        self.names = [n if "__fnjax_" not in n else "what a function returns" for n in names]

    def read(self) -> list[Any]:
        """Return the values; UNBOUND for a variable without a value."""
        return [kind.read(owner).find(key) for owner, kind, key in self._places]

    def write(self, values: Sequence[Any]) -> None:
        """Set the values."""
        for (owner, kind, key), value in zip(self._places, values, strict=False):
            assert kind.write is not None
            kind.write(owner, kind.read(owner).replace(key, value))

    def add(self, state: State, changed: Mapping[int, Content]) -> bool:
        """Add the places that an iteration has changed; return whether any of them is new.

        Raises:
            NotSupported: a changed object cannot be carried by a loop: a list that grows, an iterator.
        """
        known = {(id(owner), key) for owner, _, key in self._places}
        known |= {(id(owner.space), key) for owner, kind, key in self._places if kind is GLOBALS}
        count = len(self._places)
        for i, after in changed.items():
            place = state.places[i]
            owner, kind, before = place
            space = owner.space if kind is GLOBALS else owner
            is_kept = kind.write is not None and kind.is_merged and kind is not TENSOR
            if not is_kept or [*before.keys] != [*after.keys]:
                raise NotSupported(
                    f"{describe_place(state, place)} is changed in a loop that ends on a traced value",
                    "assign new values to variables instead, or give the loop a fixed number of iterations",
                )
            for key, x, y in zip(before.keys, before.values, after.values, strict=True):
                if x is not y and (id(space), key) not in known:
                    self._places.append((owner, kind, key))
                    self.names.append(state.name(owner) + kind.label(key))
        return len(self._places) > count
