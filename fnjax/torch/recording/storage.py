"""Storages: the memory that tensors share."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, NamedTuple

import jax

from fnjax._primitives.jax_internals import find_trace, is_in_scope
from fnjax.torch.errors import NotSupported, find_line
from fnjax.torch.recording.graph import BRANCH, Branch, Value
from fnjax.torch.recording.journal import is_in_branch, next_serial, note_storage

replaced: ContextVar[dict[int, str] | None] = ContextVar("replaced", default=None)  # storages that nobody may read


class LostValue(Value):
    """Placeholder for a result of a Function, or an attribute of ctx, after a write to the argument that it copies."""

    __slots__ = ()

    def __init__(self) -> None:
        self.node, self.index, self.requires_grad, self.is_conditional = None, 0, False, False
        self.leaf = self.hooks = self.source = self.origin = None

    @property
    def array(self) -> Any:
        """Raise NotSupported: the value after the write is not known."""
        raise NotSupported(
            "what a Function returned or kept on ctx, or .data was given, and what shares memory with another tensor, "
            "after a write to that",
            "return, keep or assign x.clone(), or write to a clone",
        )


class OverwrittenValue(LostValue):
    """Placeholder for a tensor that forward saved, after a write to it before backward.

    Args:
        is_certain: whether the write was made outside of traced branches and loops.
    """

    __slots__ = ("_is_certain",)

    def __init__(self, is_certain: bool) -> None:
        super().__init__()
        self._is_certain = is_certain

    @property
    def array(self) -> Any:
        """Raise PyTorch's error; NotSupported if it depends on a traced test whether PyTorch raises it."""
        what = "one of the variables needed for gradient computation has been modified by an inplace operation"
        remedy = "save x.clone() in forward, or write to a clone"
        if not self._is_certain:
            raise NotSupported(f"{what} in a branch or loop that depends on a traced value", remedy)
        raise RuntimeError(f"{what}\n  fix: {remedy}\n  at: {find_line()}")


def check_gradient(gradient: Any) -> Any:
    """Return a `.grad`; raise NotSupported if its value is traced, and the trace has ended."""
    if not is_in_scope(gradient.memory.value.array):
        raise NotSupported(
            "the `.grad` that `.backward()` left in a function that JAX traced: its value ended with the trace",
            "take the gradient by jax.grad of torch.func.functional_call, and return it",
        )
    return gradient


class Guard:
    """Flag of memory that ctx keeps: set by the next write to the memory.

    Attributes:
        branches: the traced branches of the calls whose ctx keeps the memory; None for a call outside of all.
        is_lost: whether the memory was written to after forward, where a program may do both.
        is_certain: whether a call and a write were made outside of traced branches and loops.
        storage: a reference to the memory that was written to; None before, and where a tensor got other memory.
    """

    branches: set[Branch | None]
    is_lost = is_certain = False
    storage: Callable[[], Storage | None] | None = None


class Storage:
    """Memory that a tensor shares with its views.

    Attributes:
        value: the present value; its array has the shape of the tensor that the storage was made for.
        layout: the layout of the whole storage.
        version: the number of writes.
        serial: a number that is larger than those of all earlier storages.
        shared: the reason why writes are refused, "" if they are not: JAX cannot share the memory as PyTorch does.
        numpy: the NumPy array that shares the memory (memory.numpy_sharing), or None.
        borrowers: weak references to the copies of this storage that `lend` recorded.
        guard: the flag that the next write sets, if the ctx of a call saves this memory; else None.
    """

    __slots__ = ("__weakref__", "borrowers", "guard", "layout", "numpy", "serial", "shared", "value", "version")
    shared: str
    numpy: Any
    is_chosen = False  # of deferred.aliases: a traced test decides which memory it is

    def __init__(self, value: Value, layout: Any) -> None:
        self.value, self.layout, self.version, self.serial, self.shared = value, layout, 0, next_serial(), ""
        self.numpy = None
        self.borrowers: list[weakref.ref[Storage]] = []
        self.guard: Guard | None = None

    @property
    def trace(self) -> Any:
        """The trace that the memory belongs to, or None."""
        return find_trace(self.value.array)

    @property
    def roots(self) -> list[Storage]:
        """The storages that hold the values of the memory: itself, or those that it is computed from."""
        return [self]

    def lend(self, other: Storage) -> None:
        """Record that another storage is a copy of this memory, which PyTorch would share.

        Writes to the copy raise, and so do reads of it after a write to this storage.
        """
        other.shared = "a write to what a Function returned, which shares memory with its argument or another result,"
        self.borrowers = [*(r for r in self.borrowers if r() is not None), weakref.ref(other)]

    def part_from(self, other: Storage) -> None:
        """Record that another storage is a copy of memory that PyTorch shares.

        After a write to either, reads of the other raise.
        """
        self.borrowers.append(weakref.ref(other))
        other.borrowers.append(weakref.ref(self))

    def end_loans(self, source: Storage | None = None) -> None:
        """Make reads of the recorded copies raise, after a write; not of `source`, from which the write came."""
        self.lose_guard()
        for other in (r() for r in self.borrowers):
            if other is not None and other is not source:
                note_storage(other)
                other.value = LostValue()
                other.version += 1
                other.end_loans(self)

    def lose_guard(self, *, has_memory: bool = True) -> None:
        """Set the flag for the calls whose ctx keeps this memory, after a write.

        Args:
            has_memory: whether what was written is in this memory: a tensor may get other memory instead.
        """
        guard, branch = self.guard, BRANCH.get()
        if guard is None or (branch is not None and all(map(branch.excludes, guard.branches))):
            return
        if has_memory:  # a tracer must not be kept alive
            is_lost = isinstance(self.value, LostValue) or isinstance(self.value.array, jax.core.Tracer)
            guard.storage = weakref.ref(self) if is_lost else lambda: self
        guard.is_lost = True
        if not is_in_branch():
            guard.is_certain, self.guard = None in guard.branches, None


def find_root(storage: Any) -> Any:
    """Return the storage that a derived storage is computed from; other storages, and selected ones, as they are."""
    while (parent := getattr(storage, "_parent", None)) is not None:
        storage = parent.memory
    return storage


class Substitute(NamedTuple):
    """Storage that replaces another within one block (substitution.substitute).

    Attributes:
        storage: the storage that is read and written instead.
        gradients: `.grad` within the block, by the ids of the tensors on it; None if they keep their own `.grad`.
    """

    storage: Storage
    gradients: dict[int, Any] | None


_none: dict[int, Substitute] = {}
substitutes: ContextVar[dict[int, Substitute]] = ContextVar("substitutes", default=_none)  # by the ids of storages
