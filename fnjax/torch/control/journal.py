"""Journal of what a block writes: storages and ctx objects as they were before, so that a branch can be taken back."""

from __future__ import annotations

import itertools
from contextvars import ContextVar
from typing import Any, Self

_current: ContextVar[Journal | None] = ContextVar("_current", default=None)
_serial = itertools.count()
TAKEN_BACK: list[type] = []  # classes whose attributes a branch may set


class Journal:
    """Journal of the writes of a block to storages and ctx objects that existed before it, so that they can be undone.

    Args:
        is_branch: whether the block is a branch whose condition is traced.

    Attributes:
        storages: the storages that were written to.
        contexts: the ctx objects that were written to.
    """

    def __init__(self, is_branch: bool = True) -> None:
        outer = _current.get()
        self.is_branch: bool = is_branch or (outer is not None and outer.is_branch)

    def __enter__(self) -> Self:
        self.start = next(_serial)
        self.storages: dict[int, tuple[Any, Any]] = {}
        self.contexts: dict[int, tuple[Any, dict[str, Any]]] = {}
        self._token = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        _current.reset(self._token)

    def take_back(self) -> tuple[dict[int, tuple[Any, Any]], dict[int, tuple[Any, dict[str, Any]]]]:
        """Undo the writes of the block; return the contents of each storage and ctx at its end."""
        after = {k: (s, s.value) for k, (s, _) in self.storages.items()}
        contexts = {k: (c, dict(vars(c))) for k, (c, _) in self.contexts.items()}
        for storage, value in self.storages.values():
            storage.value = value
            storage.version += 1
        for ctx, before in self.contexts.values():
            vars(ctx).clear()
            vars(ctx).update(before)
        return after, contexts


def next_serial() -> int:
    """Return a number that grows with each storage that is made."""
    return next(_serial)


def note_storage(storage: Any) -> None:
    """Save the value of a storage before it is written to."""
    journal = _current.get()
    if journal is not None and storage.serial < journal.start:
        journal.storages.setdefault(id(storage), (storage, storage.value))


def note_context(ctx: Any) -> None:
    """Save the contents of a ctx before it is written to."""
    journal = _current.get()
    if journal is not None:
        journal.contexts.setdefault(id(ctx), (ctx, dict(vars(ctx))))


def is_journaled() -> bool:
    """Return whether a journal notes writes."""
    return _current.get() is not None


def is_in_branch() -> bool:
    """Return whether a branch or loop runs of which it is not known whether it is taken."""
    journal = _current.get()
    return journal is not None and journal.is_branch
