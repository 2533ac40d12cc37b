"""Entries of Python lists by a traced integer: `parts[rank]`, of tensors a view that writes go through."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp

from fnjax.torch import _layout
from fnjax.torch._branches import NUMBERS, if_
from fnjax.torch._errors import NotSupported
from fnjax.torch._tensor import Derived, Tensor, is_known
from fnjax.torch._values import Value, compute


class _Chosen(Derived):
    """Memory that is one of several tensors', a traced integer says which."""

    __slots__ = ("_at", "_parents")

    def __init__(self, parents: Sequence[Tensor], at: Tensor) -> None:
        self._parents, self._at = tuple(parents), at
        self._cached = (-1, None)
        self.serial, self.shared = min(p.memory.serial for p in parents), ""
        self.layout = _layout.make_layout(parents[0].layout.shape)

    @property
    def version(self) -> int:
        """The writes to all of them."""
        return sum(p.memory.version for p in self._parents)

    @version.setter
    def version(self, _: int) -> None:
        pass

    @property
    def value(self) -> Value:
        """The entry that is chosen."""
        if self._cached[0] != self.version:
            values = [self._at.value, *(p.value for p in self._parents)]
            found = compute(lambda at, *arrays: (jnp.stack(arrays)[at],), values, "IndexBackward")[0]
            self._cached = (self.version, found)
        return self._cached[1]

    @value.setter
    def value(self, new: Value) -> None:
        count = len(self._parents)
        for i, parent in enumerate(self._parents):

            def put(at: Any, old: Any, given: Any, i: int = i) -> tuple[Any, ...]:
                return (jnp.where((at == i) | (at == i - count), given, old),)

            parent.assign(compute(put, [self._at.value, parent.value, new], "CopySlices")[0])


def _is_traced(index: Any) -> bool:
    return isinstance(index, Tensor) and not is_known(index.array) and index.layout.size == 1


def get_entry(container: Any, index: Any) -> Any:
    """Return `container[index]`, of a list or tuple also by a traced integer.

    Raises:
        NotSupported: its entries are neither numbers nor tensors of one shape and dtype.
    """
    if not isinstance(container, (list, tuple)) or not _is_traced(index):
        return container[index]
    if all(isinstance(x, Tensor) for x in container):
        if len({(*x.layout.shape, x.dtype.name) for x in container}) == 1 and container:
            storage = _Chosen(container, index.reshape(()))
            return Tensor.over(storage, storage.layout, container[0].dtype)
    elif all(isinstance(x, NUMBERS) for x in container):
        found = container[-1]
        for i, x in reversed([*enumerate(container[:-1])]):
            here = (index == i) | (index == i - len(container))
            found = if_(here, lambda _, x=x: (x,), lambda _, x=found: (x,), (None,), ("an entry of a list",))[0]
        return found
    raise NotSupported(
        "an entry of a list by a traced number, of entries that are not of one kind",
        "make them tensors of one shape, or numbers",
    )


def set_entry(container: Any, index: Any, new: Any) -> None:
    """Run `container[index] = new`, in a list also for a traced integer."""
    if not isinstance(container, list) or not _is_traced(index):
        container[index] = new
        return
    for i, old in enumerate(container):
        here = (index == i) | (index == i - len(container))
        container[i] = if_(here, lambda _: (new,), lambda _, old=old: (old,), (None,), ("an entry of a list",))[0]
