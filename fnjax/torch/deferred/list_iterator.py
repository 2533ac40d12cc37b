"""Iterator of a list whose position may be traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self

from fnjax.torch.errors import NotSupported

END = 2**31 - 1  # the position of an iterator that has ended: it stays there if the list grows


class ListIterator:
    """Iterator of a list or tuple, in place of Python's while JAX traces: branches merge its position.

    Args:
        items: the list or tuple.
        at: the position at which it starts.

    Attributes:
        at: the present position: an int, or a traced number.
        most: an upper bound of the position, over all branches: it is not restored after a branch that is not taken.
    """

    __slots__ = ("__dict__", "most")

    def __init__(self, items: Sequence[Any], at: Any = 0) -> None:
        self.items, self.at, self.most = items, at, at

    @property
    def is_traced(self) -> bool:
        """Return whether the position is traced."""
        return type(self.at) is not int

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> Any:
        self._check_known()
        if self.at >= len(self.items):
            self.at = END
            raise StopIteration
        self.at += 1
        self.most += 1
        return self.items[self.at - 1]

    def __length_hint__(self) -> int:
        self._check_known()
        return max(len(self.items) - self.at, 0)

    def __reduce__(self) -> Any:
        self._check_known()
        return ListIterator, (self.items, self.at)

    def _check_known(self) -> None:
        if self.is_traced:
            raise NotSupported(
                "an iterator of which JAX decides how far it has been read",
                "read on by next() with a default, sum(), list() or a for loop",
            )
