"""Aliases that depend on a traced test: `if test: y = x`, then `y.add_(1)`."""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Collection, Sequence
from typing import Any

import jax.numpy as jnp

from fnjax.torch.memory import layout as layouts
from fnjax.torch.memory.strides import Strides
from fnjax.torch.memory.tensor import Derived, Tensor
from fnjax.torch.recording.graph import Value, compute_view, note_conditional
from fnjax.torch.recording.journal import note_storage
from fnjax.torch.recording.storage import Storage

# A condition: a value of booleans, or a function and the conditions that it joins. Most are never computed.
_Test = Value | tuple[Callable[..., Any], "_Test", "_Test"]


class _Shadow(Storage):
    """Storage of a merged tensor's own, for its value where it does not share other memory."""

    __slots__ = ()


class _Twin:
    """Storage that a merged tensor shares if a condition holds.

    Attributes:
        test: the condition.
        seen: the version of the storage at the last update of the merged tensor.
        order: if several conditions hold, the twin of the highest order decides on the value.
    """

    __slots__ = ("_detached", "_dtype", "_layout", "_part", "order", "seen", "storage", "test")

    def __init__(self, tensor: Tensor, test: _Test) -> None:
        self.storage = tensor.memory  # kept: another merged tensor may share it, though no variable refers to it
        self._layout, self._dtype, self._part, self._detached = (
            tensor.layout, tensor.dtype, tensor.part, tensor._detached,
        )  # fmt: skip
        self.test, self.seen = test, self.storage.version
        self.order = -self.storage.serial if type(self.storage) is _Shadow else 1

    def show(self) -> Tensor:
        """Return the tensor that refers to the memory."""
        return Tensor.over(self.storage, self._layout, self._dtype, self._part, detached=self._detached)


class Merged(Derived):
    """Storage that shares the memory of others under traced conditions: a write to either changes both if it holds."""

    __slots__ = ("_own", "_seen", "_twins")
    _twins: list[_Twin]
    is_chosen = True

    def __init__(self, value: Value, sides: Sequence[tuple[Tensor, Value]], strides: Strides | None = None) -> None:
        self.layout = layouts.make_layout(value.array.shape, strides)
        self._own = _Shadow(value, self.layout)
        self.serial = self._own.serial
        self.shared = next((t.memory.shared for t, _ in sides if t.memory.shared), "")
        found: dict[Any, _Twin] = {}
        for tensor, test in sides:
            for place, condition in list_places(tensor):
                taken: _Test = test if condition is None else (jnp.logical_and, test, condition)
                twin = found.setdefault((find_place(place), id(place._detached)), _Twin(place, taken))
                twin.test = taken if twin.test is taken else (jnp.logical_or, twin.test, taken)
        self._twins = sorted(found.values(), key=lambda twin: twin.order)
        self._seen = self._own.version

    def _follow(self) -> None:
        """Update the value after a write to one of the twins, or after an update was undone."""
        is_other = self._own.version != self._seen
        for twin in self._twins:
            if is_other or twin.storage.version != twin.seen:
                twin.seen = twin.storage.version
                note_storage(self._own)
                self._own.value = _choose(twin.test, twin.show().value, self._own.value)
                self._own.version += 1
        self._seen = self._own.version

    @property
    def trace(self) -> Any:
        """The trace that this memory belongs to, or None."""
        return self._own.trace

    @property
    def roots(self) -> list[Storage]:
        """Its own storage, and those of the memory that it shares."""
        return [self._own, *(root for twin in self._twins for root in twin.storage.roots)]

    @property
    def version(self) -> int:
        """The number of writes to this memory, and to those that it shares."""
        self._follow()
        return self._own.version

    @version.setter
    def version(self, _: int) -> None:
        pass

    @property
    def value(self) -> Value:
        """The present value."""
        self._follow()
        return self._own.value

    @value.setter
    def value(self, new: Value) -> None:
        note_storage(self._own)
        self._own.value = new
        self._own.version += 1
        for twin in self._twins:
            other = twin.show()
            other.assign(_choose(twin.test, new, other.value), may_be_leaf=True)
            twin.seen = twin.storage.version
        self._seen = self._own.version

    def hold(self, value: Value) -> None:
        """Set the value without writing to the twins, whose earlier writes are ignored."""
        note_storage(self._own)
        self._own.value = value
        self._own.version += 1
        for twin in self._twins:
            twin.seen = twin.storage.version
        self._seen = self._own.version


def list_places(tensor: Tensor) -> list[tuple[Tensor, _Test | None]]:
    """Return the tensors whose memory a tensor may share, each with its condition; None for no condition.

    For a merged tensor, its own storage is among them.
    """
    memory = tensor.memory
    if not isinstance(memory, Merged) or tensor.layout is not memory.layout or tensor._detached:
        return [(tensor, None)]
    own = Tensor.over(memory._own, memory.layout, tensor.dtype)
    return [(own, None), *((twin.show(), twin.test) for twin in memory._twins)]


def find_place(tensor: Tensor) -> tuple[Any, ...]:
    """Return a key of a tensor's position in memory (storage, layout, dtype), valid while the storage lives."""
    layout = tensor.layout
    where = layout.ctypes.data, layout.shape, layout.strides
    return id(tensor.memory), *where, tensor.dtype, tensor.part, tensor._detached is None


def are_aliases(a: Tensor, b: Tensor) -> Any:
    """Return whether two tensors are the same memory, as a bool or an array of one."""
    places = {find_place(place): test for place, test in list_places(b)}
    found: Any = False
    for place, test in list_places(a):
        key = find_place(place)
        if key in places:
            both = [_evaluate(t, {}) for t in (test, places[key]) if t is not None]
            found = found | functools.reduce(operator.and_, both, True)
    return found


def _evaluate(test: _Test, known: dict[int, Any]) -> Any:
    """Return a condition's array; `known` caches the arrays of its parts by their ids."""
    if isinstance(test, Value):
        return test.array
    if id(test) not in known:
        function, *parts = test
        known[id(test)] = function(*(_evaluate(part, known) for part in parts))
    return known[id(test)]


def _choose(test: _Test, a: Value, b: Value) -> Value:
    note_conditional([a, b])
    return compute_view(lambda t, x, y: (jnp.where(t, x, y),), [Value(_evaluate(test, {})), a, b])


def find_shared(state: Sequence[Any]) -> set[int]:
    """Return the ids of the storages that several variables share."""
    tensors = {id(x): x for x in state if issubclass(type(x), Tensor)}
    roots = [id(r) for x in state if id(x) in tensors for r in x.memory.roots]
    return {r for r in roots if roots.count(r) > 1}


def merge_memory(
    value: Value, own: Any, test: Any, a: Any, b: Any, start: int, shared: Collection[int], strides: Strides | None
) -> Tensor | None:
    """Return a tensor that shares memory with the results of two branches; None if both are new and not shared.

    Args:
        value: its value.
        own: torch's dtype.
        test: the condition, true for the first branch.
        a: the result of the first branch.
        b: the result of the second branch.
        start: the serial number of the first storage that the branches made.
        shared: the ids of storages that a branch assigned to several variables.
        strides: its strides.
    """
    sides = []
    for side, taken in ((a, test.array), (b, jnp.logical_not(test.array))):
        if not isinstance(side, Tensor) or side.dtype is not own or side.layout.shape != value.array.shape:
            continue
        # Memory that a branch made may be a choice, or a view, of older memory.
        is_older = any(root.serial < start or id(root) in shared for root in side.memory.roots)
        if is_older or side.memory.shared:
            sides.append((side, Value(taken)))
    if not sides:
        return None
    storage = Merged(value, sides, strides)
    return Tensor.over(storage, storage.layout, own)
