"""Trees of arguments, and positions of NumPy arrays in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np


def map_leaves(function: Callable[[Any], Any], tree: Any) -> Any:
    """Apply a function to the leaves of lists, tuples, dictionaries and slices."""
    if isinstance(tree, tuple) and hasattr(tree, "_fields"):
        return type(tree)(*(map_leaves(function, x) for x in tree))
    if type(tree) in {list, tuple}:
        return type(tree)(map_leaves(function, x) for x in tree)
    if type(tree) is dict:
        return {k: map_leaves(function, x) for k, x in tree.items()}
    if isinstance(tree, slice):
        return slice(*(map_leaves(function, x) for x in (tree.start, tree.stop, tree.step)))
    return function(tree)


def list_leaves(tree: Any) -> list[Any]:
    """Return the leaves of a tree."""
    found: list[Any] = []
    map_leaves(found.append, tree)
    return found


def share_memory(a: Any, b: Any) -> bool:
    """Return whether two values are arrays that may share memory."""
    return isinstance(a, np.ndarray) and isinstance(b, np.ndarray) and np.may_share_memory(a, b)


def find_place(view: Any, whole: Any) -> tuple[int, tuple[int, ...]] | None:
    """Return the offset and strides, in elements, of an array in another's memory; None if they are disjoint."""
    if not share_memory(view, whole) or view.dtype != whole.dtype:
        return None
    offset = view.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    return offset // view.itemsize, tuple(s // view.itemsize for s in view.strides)
