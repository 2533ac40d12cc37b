"""Variables of a loop that ends on a traced value, and other places that an iteration changes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any, NamedTuple

import jax

from fnjax.torch.control.branches import select
from fnjax.torch.control.carry import is_leaf, make_zeros
from fnjax.torch.control.state.effects import describe_place
from fnjax.torch.control.state.places import CELL, GLOBALS, TENSOR, UNBOUND, Content, Globals, Kind
from fnjax.torch.control.state.state import State
from fnjax.torch.deferred.either import Either, describe
from fnjax.torch.deferred.number import NUMBERS, Number
from fnjax.torch.errors import NotSupported
from fnjax.torch.memory.dtypes import dtype
from fnjax.torch.memory.tensor import Tensor

_CONSTANTS = (str, bytes, type(None), type, dtype, Enum)
_MOST = 8  # alternatives of a variable


class Choice(NamedTuple):
    """Value of a variable that is a tensor or None, one of several texts, or a tensor of one of several shapes.

    Attributes:
        index: which of the alternatives it is.
        values: the alternatives; zeros in place of tensors and numbers that it is not.
    """

    index: Any
    values: list[Any]


class _Alternatives:
    """Alternatives of a variable.

    Args:
        name: the name of the variable.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self.samples: dict[Any, Any] = {}
        self._last: tuple[Any, Any] = (None, None)

    def wrap(self, value: Any) -> Choice:
        """Return a value as a Choice.

        Raises:
            NotSupported: there are too many alternatives, or one that cannot be carried.
        """
        if type(value) is Either and self._last[0] is value:
            found: Choice = self._last[1]
            return found
        for x in _list_values(value):
            key = _find_key(x)
            if key is None or (key not in self.samples and len(self.samples) == _MOST):
                raise NotSupported(f"{self._name} becomes {describe(x)} in a loop that ends on a traced value")
            self.samples.setdefault(key, x)
        zeros = [jax.tree.map(make_zeros, x, is_leaf=is_leaf) for x in self.samples.values()]
        return self._choose(value, zeros)

    def _choose(self, value: Any, zeros: list[Any]) -> Choice:
        if type(value) is Either:
            yes, no = self._choose(value.yes, zeros), self._choose(value.no, zeros)
            pairs = zip(yes.values, no.values, strict=True)
            return Choice(
                select(value.test, yes.index, no.index),
                [x if x is y else select(value.test, x, y) for x, y in pairs],
            )
        at = 0 if value is UNBOUND else [*self.samples].index(_find_key(value))
        return Choice(at, [value if i == at and value is not UNBOUND else x for i, x in enumerate(zeros)])

    def unwrap(self, choice: Choice) -> Any:
        """Return the value that a Choice stands for; other values unchanged."""
        if type(choice) is not Choice or type(choice.index) is int:
            return choice.values[choice.index] if type(choice) is Choice else choice
        *others, value = choice.values
        for i, x in [*enumerate(others)][::-1]:
            value = Either(self._name, choice.index == i, x, value)
        self._last = value, choice
        return value


def _list_values(value: Any) -> list[Any]:
    """Return the values that a variable may have."""
    if type(value) is Either:
        return [*_list_values(value.yes), *_list_values(value.no)]
    return [] if value is UNBOUND else [value]


def _find_key(value: Any) -> Any:
    """Return a key that is equal for values of one kind: tensors of one shape and dtype, numbers; None for others."""
    if isinstance(value, Tensor):
        return value.dtype, tuple(value.shape)
    if isinstance(value, (Number, *NUMBERS)):
        return Number
    if type(value) is tuple:
        keys = tuple(map(_find_key, value))
        return None if None in keys else (tuple, *keys)
    return (type(value), value) if isinstance(value, _CONSTANTS) else None


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
        self._alternatives = dict[int, _Alternatives]()  # by the index of a variable

    def read(self) -> list[Any]:
        """Return the values, those of variables with alternatives as Choices; UNBOUND for one without a value."""
        values = [kind.read(owner).find(key) for owner, kind, key in self._places]
        return [self._alternatives[i].wrap(v) if i in self._alternatives else v for i, v in enumerate(values)]

    def write(self, values: Sequence[Any]) -> None:
        """Set the values."""
        for i, ((owner, kind, key), value) in enumerate(zip(self._places, values, strict=False)):
            assert kind.write is not None
            own = self._alternatives.get(i)
            kind.write(owner, kind.read(owner).replace(key, value if own is None else own.unwrap(value)))

    def split(self, before: Sequence[Any], after: Sequence[Any]) -> bool:
        """Find alternatives of variables by their values before and after an iteration; return whether any is new."""
        is_new = False
        for i, (x, y) in enumerate(zip(before, after, strict=True)):
            if i in self._alternatives:
                is_new |= len(x.values) != len(y.values)
            elif x is not y:
                keys = {_find_key(v) for v in (*_list_values(x), *_list_values(y))}
                others = keys - {Number}  # which a tensor may replace (Carry)
                if None not in keys and len(keys) > 1 and (len(others) > 1 or type(next(iter(others))[0]) is not dtype):
                    self._alternatives[i] = _Alternatives(self.names[i])
                    is_new = True
        return is_new

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
