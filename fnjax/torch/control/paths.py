"""Runs of a whole function for both values of a test: if effects cannot be merged, or a use needs to know a value."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

from fnjax._primitives.jax_internals import find_program
from fnjax.torch.control.state.state import State
from fnjax.torch.deferred.either import Either, assuming_nothing
from fnjax.torch.errors import NotSupported
from fnjax.torch.recording.blocks import setting
from fnjax.torch.recording.journal import next_serial, take_back
from fnjax.torch.recording.rng import Stream

# Key of a test: those of the branches around it and their truth, then its number in the innermost one.
Key = tuple[int | bool, ...]
_MOST = 3000  # nodes and storages that all runs of a function make
PATH: ContextVar[Path | None] = ContextVar("PATH", default=None)


class Path:
    """One run of a whole function, in which some traced tests are assumed to be true or false.

    Args:
        known: the assumed truth of tests, by their keys; None for what cannot be run twice.
        end: the serial number of nodes and storages after which no other test is assumed.
    """

    def __init__(self, known: Mapping[Key, bool] | None = None, end: int = 0) -> None:
        self.known, self._end, self._program = known or {}, end, find_program()
        self._outer: Key = ()
        self._count, self._keys = 0, list[Key]()

    def count(self) -> Key:
        """Return the key of the next test, which is the same in every run that evaluates the test."""
        self._count += 1
        key = (*self._outer, self._count)
        self._keys.append(key)
        return key

    @contextlib.contextmanager
    def enter(self, key: Key, truth: bool) -> Iterator[None]:
        """Begin a branch of a test in which it is true, or false."""
        outer = self._outer, self._count
        self._outer, self._count = (*key, truth), 0
        try:
            yield
        finally:
            self._outer, self._count = outer

    def fork(self, test: Any, key: Key, error: NotSupported) -> Fork | NotSupported:
        """Return the signal that another test is to be assumed, or `error` if the runs are too large for that.

        Args:
            test: a test that may be assumed.
            key: its key.
            error: the reason.
        """
        may_run = next_serial() < self._end and find_program() is self._program
        # Later tests have other keys where this one is known, but for those in its branches.
        before = self._keys[: self._keys.index(key)]
        known = {k: truth for k, truth in self.known.items() if k in before or k[: len(key)] == key}
        return Fork(test, key, error, known) if may_run else error

    def fork_later(self, test: Any, key: Key, error: NotSupported) -> Fork | NotSupported:
        """Return what `fork` returns, after the branches, in the same run of the function."""
        return self.fork(test, key, error) if PATH.get() is self else error


class Fork(BaseException):  # which no handler of the source catches
    """Signal that the whole function is to be run for both values of a test.

    Args:
        test: the test of the branches.
        key: the key of the test.
        error: the exception to raise if the function cannot be run twice.
        known: the tests that stay assumed.
    """

    def __init__(self, test: Any, key: Key, error: NotSupported, known: Mapping[Key, bool]) -> None:
        super().__init__(error)
        self.test, self.key, self.error, self.known = test, key, error, known


def run_paths(
    function: Callable[[], Any], state: State, known: Mapping[Key, bool] | None = None, end: int | None = None
) -> Any:
    """Run a function; if it needs to know a traced test, run it once for each value of that and merge the results.

    Args:
        function: the function.
        state: the state that it reaches. The caller has begun a journal.
        known: the assumed truth of tests, by their keys.
        end: see Path.
    """
    known, end = known or {}, next_serial() + _MOST if end is None else end
    try:
        with setting(PATH, Path(known, end)), Stream().resume(), assuming_nothing():  # so that known tests are counted
            return function()
    except Fork as found:
        fork = found
    take_back()
    changed = state.list_changes()
    state.restore(changed)
    if any(state.places[i].kind.write is None for i in changed):
        raise fork.error

    def run(truth: bool) -> Any:
        return run_paths(function, State([function]), {**fork.known, fork.key: truth}, end)

    return Either.choose(fork.test, lambda: run(True), lambda: run(False))
