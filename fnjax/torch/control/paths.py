"""Runs of a whole function for both values of a test, if the effects of its branches cannot be merged: lists, sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from fnjax.torch.control.branches import PATH, Fork, Path, if_
from fnjax.torch.control.state.state import State
from fnjax.torch.recording.journal import take_back
from fnjax.torch.recording.rng import Stream


def run_paths(function: Callable[[], Any], state: State, known: Mapping[int, bool] | None = None) -> Any:
    """Run a function; if the branches of a test cannot be merged, run it once for each of them and merge the results.

    Args:
        function: the function.
        state: the state that it reaches. The caller has begun a journal.
        known: the assumed truth of tests, by their numbers (branches.Path).
    """
    known = known or {}
    token = PATH.set(Path(known))
    try:
        with Stream().resume():
            return function()
    except Fork as found:
        fork = found
    finally:
        PATH.reset(token)
    take_back()
    changed = state.list_changes()
    state.restore(changed)
    if any(state.places[i].kind.write is None for i in changed):
        raise fork.error

    def run(truth: bool) -> Any:
        return run_paths(function, State([function]), {**known, fork.number: truth})

    return if_(fork.test, lambda: run(True), lambda: run(False))
