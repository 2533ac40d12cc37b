"""Items of Python lists at a traced index: `parts[rank]`. A tensor at such an index is a view of the item."""

from __future__ import annotations

import operator
from collections.abc import Callable, Sequence
from typing import Any

import jax.numpy as jnp
import numpy as np

from fnjax.torch.control.branches import select
from fnjax.torch.deferred.either import Either, distribute, resolve
from fnjax.torch.deferred.number import NUMBERS, Number, find_dtype, is_traced, kinds_of
from fnjax.torch.host.calls import is_host_or_traced, record
from fnjax.torch.memory import layout as layouts
from fnjax.torch.memory.tensor import Derived, Tensor
from fnjax.torch.recording.graph import Value, compute, compute_view, find_kept, keep
from fnjax.torch.recording.storage import Storage


class _Selected(Derived):
    """Memory of one of several tensors, selected by a traced integer."""

    __slots__ = ("_at", "_parents")
    is_chosen = True

    def __init__(self, parents: Sequence[Tensor], at: Tensor) -> None:
        self._parents, self._at = tuple(parents), at
        self._cached = (-1, None)
        self.serial, self.shared = min(p.memory.serial for p in parents), ""
        self.layout = layouts.make_layout(parents[0].layout.shape)

    @property
    def trace(self) -> Any:
        """The trace that the integer belongs to."""
        return self._at.memory.trace

    @property
    def roots(self) -> list[Storage]:
        """The storages of all of the tensors."""
        return [root for parent in self._parents for root in parent.memory.roots]

    @property
    def version(self) -> int:
        """The total number of writes to the tensors."""
        return sum(p.memory.version for p in self._parents)

    @version.setter
    def version(self, _: int) -> None:
        pass

    @property
    def value(self) -> Value:
        """The value of the selected tensor."""
        version, kept = self._cached
        found = find_kept(kept) if kept is not None and version == self.version else None
        if found is None:
            values = [self._at.value, *(p.value for p in self._parents)]
            found = compute_view(lambda at, *arrays: (jnp.stack(arrays)[at],), values)
            self._cached = (self.version, keep(found, self.trace))
        return found

    @value.setter
    def value(self, new: Value) -> None:
        count = len(self._parents)
        for i, parent in enumerate(self._parents):

            def put(at: Any, old: Any, given: Any, i: int = i) -> tuple[Any, ...]:
                return (jnp.where((at == i) | (at == i - count), given, old),)

            parent.assign(compute(put, [self._at.value, parent.value, new], "CopySlices")[0])


def _is_traced(index: Any) -> bool:
    return is_traced(index) and (type(index) is Number or index.layout.size == 1)


def get_entry(container: Any, index: Any) -> Any:
    """Return `container[index]`; the index of a list or tuple may be a traced integer."""
    if type(index) is Either or type(container) is Either:
        return distribute(get_entry, (container, index), {})
    if issubclass(type(container), np.ndarray) and any(
        map(is_host_or_traced, index if type(index) is tuple else (index,))
    ):
        return record(operator.getitem, (container, index), {}, "indexing")
    if not _is_traced(index) or not isinstance(container, (list, tuple)) or not container:
        return container[index]
    first = container[0]
    if all(isinstance(x, Tensor) and x.shape == first.shape and x.dtype is first.dtype for x in container):
        at: Any = index.to_operand() if type(index) is Number else index.reshape(())
        at = at * 1  # True is 1
        storage = _Selected(container, at)
        selected = Tensor.over(storage, storage.layout, first.dtype)
        selected.sides = ()
        return selected
    if all(isinstance(x, (Number, *NUMBERS)) for x in container):
        kinds = frozenset[type]().union(*map(kinds_of, container))
        arrays = [x.array if type(x) is Number else x for x in container]
        entries = jnp.stack([jnp.asarray(a, find_dtype(kinds).array) for a in arrays])
        return Number(Value(entries[jnp.asarray(index.array, int).reshape(())]), kinds)
    if all(type(x) is tuple and len(x) == len(first) for x in container):
        return tuple(get_entry(column, index) for column in zip(*container, strict=True))
    found = container[-1]
    for i, x in enumerate(container[:-1]):
        found = select((index == i) | (index == i - len(container)), x, found)
    return found


def set_entry(new: Any, container: Any, index: Any) -> None:
    """Run `container[index] = new`; for a list, the index may be a traced integer."""
    if type(container) is Either or type(index) is Either:
        distribute(lambda x, i: set_entry(resolve(new), x, i), (container, index), {})
        return
    if not _is_traced(index) or not isinstance(container, list):
        container[index] = new
        return
    for i, old in enumerate(container):
        here = (index == i) | (index == i - len(container))
        container[i] = select(here, new, old)


def update_entry(container: Any, index: Any, operation: str, value: Callable[[], Any]) -> None:
    """Run `container[index] += value()`, or another such statement, by the name of its function in `operator`."""
    entry = get_entry(container, index)
    new = getattr(operator, operation)(entry, value())
    if new is not entry or type(container) is not list:
        set_entry(new, container, index)
