"""`[v for v in x if v > 0]` with a traced condition: a list whose length is not known while JAX traces."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from fnjax.torch.deferred.base import Deferred
from fnjax.torch.deferred.number import number
from fnjax.torch.errors import NotSupported


class Item(NamedTuple):
    """Item that a list may have.

    Attributes:
        test: whether the list has the item: True, or a traced bool.
        value: the item.
    """

    test: Any
    value: Any


class Filtered(Deferred):
    """List whose items are selected by traced tests.

    For `isinstance` it is a list. Uses that need to know the number of items raise.

    Args:
        items: the items that it may have, in order; an iterator if a builtin such as `any` reads a generator.
    """

    __slots__ = ("items",)

    def __init__(self, items: Iterable[Item]) -> None:
        self.items = items

    __class__: Any = property(lambda self: list)

    def refuse(self, use: str = "") -> NotSupported:
        """Return the exception for a use that needs to know which items the list has."""
        return NotSupported(
            f"{use or 'a use'} of a list of which a traced condition selects the items: their number is not known "
            "while JAX traces",
            "reduce it by sum(), len(), any(), all(), max() or min(), or compute with all items and torch.where",
        )

    @property
    def mask(self) -> jax.Array:
        """The tests of the items, as an array."""
        return jnp.stack([jnp.asarray(getattr(item.test, "array", item.test), bool) for item in self.items])

    def count(self) -> Any:
        """Return the number of items, a traced number."""
        return number(self.mask.sum())

    def __repr__(self) -> str:
        return "<a list of which a traced condition selects the items>"


jax.tree_util.register_pytree_node(Filtered, lambda x: (x.items, None), lambda _, items: Filtered([*items]))
