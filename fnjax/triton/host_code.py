"""What Python code around a launch sees of it: grid functions, heuristics, hooks, a package's own autotuners."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any

# How grid functions, heuristics and hooks see arguments: a function of one, and its inverse. fnjax.torch sets it.
_view = ContextVar("_view", default=(lambda x: x, lambda x: x))
_is_launching = ContextVar("_is_launching", default=False)


@contextlib.contextmanager
def launching() -> Iterator[None]:
    """Say that the block launches a kernel."""
    token = _is_launching.set(True)
    try:
        yield
    finally:
        _is_launching.reset(token)


def is_launching() -> bool:
    """Return whether a kernel is being launched, so that a package's own autotuners get what the kernel gets."""
    return _is_launching.get()


@contextlib.contextmanager
def viewing(show: Callable[[Any], Any], take: Callable[[Any], Any]) -> Iterator[None]:
    """Let grid functions, heuristics and hooks of the launches in the block see `show(argument)`; `take` goes back."""
    token = _view.set((show, take))
    try:
        yield
    finally:
        _view.reset(token)


def view(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return arguments by name as grid functions, heuristics and hooks see them."""
    return {name: _view.get()[0](value) for name, value in given.items()}


def taken(value: Any) -> Any:
    """Return the argument that is seen as a value, after a hook may have written to it."""
    return _view.get()[1](value)
