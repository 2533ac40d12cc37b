"""Blocks: context variables that are set within one, and those of torch that are decorators as well."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Self, TypeVar

T = TypeVar("T")


@contextlib.contextmanager
def setting(variable: ContextVar[T], value: T) -> Iterator[T]:
    """Set a context variable within a block, whose `as` is the value."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


class Block:
    """A block that may be entered again within itself, or decorate a function."""

    _entered: tuple[Any, ...] = ()  # what `open` has returned

    def open(self) -> AbstractContextManager[Any]:
        """Return the context manager that sets the state of the block."""
        raise NotImplementedError

    def __enter__(self) -> Self:
        block = self.open()
        block.__enter__()
        self._entered = (*self._entered, block)
        return self

    def __exit__(self, *error: object) -> None:
        *before, block = self._entered
        self._entered = tuple(before)
        block.__exit__(*error)

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that runs in such a block."""

        @functools.wraps(function)
        def inside(*args: Any, **kwargs: Any) -> Any:
            with self.open():
                return function(*args, **kwargs)

        return inside
