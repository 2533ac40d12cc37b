"""The smallest call that still differs."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from fnjax.port.verify.calls import Call


def shrink_call(call: Call, differs: Callable[[Call], bool], until: float, digits: Sequence[int]) -> Call:
    """Return the smallest call that is found in that time.

    Args:
        call: a call that differs.
        differs: whether another does, too.
        until: when to stop.
        digits: to how many numbers are rounded.
    """
    again = True
    while again:
        again = False
        for smaller in _iter_smaller(call, digits):
            if time.monotonic() > until:
                return call
            if differs(smaller):
                call, again = smaller, True
                break
    return call


def _iter_smaller(call: Call, digits: Sequence[int]) -> Iterator[Call]:
    """Yield calls that are simpler by one step, the largest steps first."""
    if call.argnums is not None:
        yield dataclasses.replace(call, argnums=None)
    sizes = sorted({n for a in _iter_arrays(call.args) for n in a.shape if n > 1}, reverse=True)
    if len(sizes) > 1:
        yield _change_arrays(call, lambda a: a[tuple(slice(1) for _ in a.shape)])
    rank = max((a.ndim for a in _iter_arrays(call.args)), default=0)
    if rank > 1:  # what has no axes at all is another matter
        yield _change_arrays(call, partial(_take_leading, rank=rank))
    for size in sizes:
        for to in sorted({1, size // 2, size - 1}):
            cut = _change_arrays(call, partial(_cut_axes, size=size, to=to))
            yield cut
            if any(type(v) is int and v == size for v in cut.args):
                args = tuple(to if type(v) is int and v == size else v for v in cut.args)
                yield dataclasses.replace(cut, args=args)
    for count in digits:
        rounded = _change_arrays(call, partial(_iteration_entries, digits=count))
        if len(rounded.write_arguments()) < len(call.write_arguments()):
            yield rounded
    if call.seed:
        yield dataclasses.replace(call, seed=0)


def _take_leading(array: np.ndarray[Any, Any], rank: int) -> Any:
    return array[0] if array.ndim == rank else array


def _cut_axes(array: np.ndarray[Any, Any], size: int, to: int) -> Any:
    return array[tuple(slice(to if n == size else n) for n in array.shape)]


def _iteration_entries(array: np.ndarray[Any, Any], digits: int) -> Any:
    return np.round(array, digits) if array.dtype.kind in "fc" else array


def _iter_arrays(value: Any) -> Iterator[np.ndarray[Any, Any]]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, (tuple, list)):
        for part in value:
            yield from _iter_arrays(part)


def _change_arrays(call: Call, change: Callable[[np.ndarray[Any, Any]], Any]) -> Call:
    def changed(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return np.asarray(change(value))
        return type(value)(changed(v) for v in value) if type(value) in {list, tuple} else value

    return dataclasses.replace(call, args=tuple(changed(a) for a in call.args), recipe=())
