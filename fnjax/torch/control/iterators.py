"""Iterators of loops, and which of them may be read again after the loop."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterable
from typing import Any

from fnjax.torch.control.expressions import TracedRange
from fnjax.torch.control.folds import is_selected
from fnjax.torch.deferred.list_iterator import ListIterator


class Shared:
    """Iterator to which a variable refers, so that it may be read again after a loop."""

    __slots__ = ("items",)

    def __init__(self, items: Any) -> None:
        self.items = items

    def __iter__(self) -> Any:
        return self.items


def _count_references(iterable: Any) -> int:
    items = iter(iterable)
    return sys.getrefcount(items)


_OF_A_TEMPORARY = _count_references(iter(()))
_OF_A_MEMBER = 2  # in is_shared: by a variable and an argument


def is_traced_iterable(items: Any) -> bool:
    """Return whether JAX decides which items an iterable has: a range with a traced bound, or a filtered sequence."""
    return type(items) is TracedRange or is_selected(items)


def iterate(iterable: Any) -> Any:
    """Return the iterator of a loop; a range with a traced bound, or items that traced tests select, as they are."""
    if is_traced_iterable(iterable) or type(iterable) is ListIterator:
        return iterable
    items = iter(iterable)
    return Shared(items) if items is iterable and sys.getrefcount(items) > _OF_A_TEMPORARY else items


def runs_code(items: Any) -> bool:
    """Return whether reading an iterator may run code with effects, as reading a generator or `map` does."""
    if type(items) in {zip, enumerate}:
        inner = [y for x in gc.get_referents(items) for y in (x if type(x) is tuple else (x,))]
        return any(runs_code(x) for x in inner if hasattr(type(x), "__next__"))
    return type(items) not in _PLAIN


_SOURCES: list[Iterable[Any]] = [[], (), {}, {}.values(), {}.items(), set(), "", b"", range(2), range(2**70)]
_PLAIN: set[type] = {range, type(reversed([])), *(type(iter(x)) for x in _SOURCES)}


def is_shared(items: Any) -> bool:
    """Return whether an iterator reads another one to which other objects refer, as `zip(it, x)` reads `it`."""
    inner = gc.get_referents(items)
    for x in inner:
        if isinstance(x, tuple) and is_shared(x):
            return True
        if hasattr(type(x), "__next__"):
            own = sum(x is y for y in inner)  # of the list and of the iterator
            if sys.getrefcount(x) - 2 * own > _OF_A_MEMBER or is_shared(x):
                return True
    return False
