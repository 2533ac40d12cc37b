"""Calls of NumPy on samples: trees of arguments, arrays with values of several kinds, and what a call changes."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

SAMPLES = 3


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


def make_samples(shape: tuple[int, ...], own: np.dtype[Any]) -> list[Any]:
    """Return arrays with values of several kinds: of both signs, positive ones, and a unit matrix."""
    size = int(np.prod(shape))
    draw = np.random.default_rng(36)
    unit = np.broadcast_to(np.eye(shape[-2], shape[-1]) if len(shape) > 1 else np.ones(shape), shape)
    kinds: list[Any] = [draw.normal(size=shape), draw.uniform(0.1, 1, shape), unit]
    if own.kind in "biu":
        kinds = [np.zeros(shape), np.ones(shape), (np.arange(size) % 3).reshape(shape)]
    return [np.array(k, own) for k in kinds]


def try_call(call: Callable[[Sequence[Any]], Any], samples: Sequence[Any], written: list[int]) -> tuple[Any, list[int]]:
    """Make a call; return its result, and which of the samples it changes.

    Args:
        call: the samples → the result.
        samples: its arguments from the host.
        written: those that it changes with other samples.
    """
    arrays = [i for i, x in enumerate(samples) if isinstance(x, np.ndarray)]
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for may in [written, *([i] for i in arrays), arrays]:
            writable = [samples[i] for i in may]
            try:
                return call([x if any(x is w for w in writable) else _freeze(x) for x in samples]), may
            except (ValueError, BufferError) as e:
                if "read-only" not in str(e) or may is arrays:
                    raise
    raise AssertionError


def _freeze(value: Any) -> Any:
    """Return a view of an array that cannot be written to."""
    if isinstance(value, np.ndarray):
        value = value.view()
        value.flags.writeable = False
    return value


def find_place(view: Any, whole: Any) -> tuple[int, tuple[int, ...]] | None:
    """Return the offset and strides, in entries, of an array in the memory of another; None where they are disjoint."""
    if not isinstance(view, np.ndarray) or not np.may_share_memory(view, whole) or view.dtype != whole.dtype:
        return None
    offset = view.__array_interface__["data"][0] - whole.__array_interface__["data"][0]
    return offset // view.itemsize, tuple(s // view.itemsize for s in view.strides)
