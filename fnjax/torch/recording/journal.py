"""Journal of the writes of a block: the old values of storages, so that the writes can be undone."""

from __future__ import annotations

import itertools
from contextvars import ContextVar
from typing import Any, Self

from fnjax.torch.errors import NotSupported

_current: ContextVar[Journal | None] = ContextVar("_current", default=None)
get_journal = _current.get  # the innermost block's
next_serial = itertools.count().__next__  # serial numbers of storages and nodes


class Journal:
    """Journal of the writes of a block to storages that existed before it, so that they can be undone.

    Args:
        is_branch: whether the block is a branch whose condition is traced.
        state: for a branch, the other state that it can reach (state.State).
        is_loop: whether it is an iteration of a loop that ends on a traced value.
        is_undone: whether the writes are undone at the end.

    Attributes:
        storages: the storages that were written to.
        program_start: the serial number at the beginning of the outermost block, which JAX traces.
        has_launched: whether a Triton kernel was launched.
    """

    def __init__(
        self, is_branch: bool = True, state: Any = None, is_loop: bool = False, is_undone: bool = False
    ) -> None:
        self.outer, self.state, self._is_undone = _current.get(), state, is_undone
        self.is_loop: bool = is_loop or (self.outer is not None and self.outer.is_loop)
        self.is_branch: bool = is_branch or (self.outer is not None and self.outer.is_branch)

    def __enter__(self) -> Self:
        self.start = next_serial()
        self.program_start: int = self.start if self.outer is None else self.outer.program_start
        self.storages: dict[int, tuple[Any, Any]] = {}
        self.has_launched = False
        self._token = _current.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_undone and self.storages:
            self.take_back()
        _current.reset(self._token)

    def take_back(self) -> dict[int, tuple[Any, Any]]:
        """Undo the writes of the block; return the contents of each storage at its end."""
        after = {k: (s, s.value) for k, (s, _) in self.storages.items()}
        for storage, value in self.storages.values():
            storage.value = value
            storage.version += 1
        return after


def note_storage(storage: Any) -> None:
    """Save the value of a storage before it is written to."""
    journal = _current.get()
    if journal is not None and storage.serial < journal.start:
        journal.storages.setdefault(id(storage), (storage, storage.value))


def take_back() -> None:
    """Undo the writes of the present block, which continues."""
    journal = _current.get()
    if journal is not None:
        journal.take_back()
        journal.storages.clear()


def note_launch() -> None:
    """Record that a Triton kernel is launched."""
    journal = _current.get()
    while journal is not None:
        journal.has_launched, journal = True, journal.outer


def note_tensor(tensor: Any) -> None:
    """Save the state of a tensor before it changes, such as a leaf's `.grad`, which a branch need not refer to."""
    journal = _current.get()
    while journal is not None:
        if journal.state is not None and tensor.memory.serial < journal.start:
            journal.state.note(tensor)
        journal = journal.outer


def note_reached(function: Any) -> None:
    """Add the objects that a hook reaches to the state of the branch: `backward()` is about to call it there."""
    journal = _current.get()
    while journal is not None:
        if journal.state is not None and journal.is_branch:
            journal.state.add(function)
        journal = journal.outer


def is_in_loop() -> bool:
    """Return whether the body of a loop that ends on a traced value is being traced: nothing is recorded in it."""
    journal = _current.get()
    return journal is not None and journal.is_loop


def refuse_in_branch(serial: int, what: str) -> None:
    """Check that an object was made in the branch that runs.

    Args:
        serial: the serial number of the object, such as a storage's.
        what: the change of it.

    Raises:
        NotSupported: the object is older, and the change cannot be merged.
    """
    journal = _current.get()
    if journal is not None and journal.is_branch and serial < journal.start:
        raise NotSupported(f"{what} in a branch or loop that depends on a traced value", "call it before the branch")


def is_older(storage: Any) -> bool:
    """Return whether a storage is older than the outermost block with a journal, that of the traced function."""
    journal = _current.get()
    return journal is None or storage.serial < journal.program_start


def is_journaled() -> bool:
    """Return whether a journal notes writes."""
    return _current.get() is not None


def is_in_branch() -> bool:
    """Return whether a branch or loop is being traced that may not be taken when the program runs."""
    journal = _current.get()
    return journal is not None and journal.is_branch
