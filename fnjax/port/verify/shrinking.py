"""Search for the smallest call that still differs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from fnjax.port.compare.values import flatten
from fnjax.port.verify.calls import Call
from fnjax.port.verify.sandboxed_calls import measure_time


def shrink_call(call: Call, differs: Callable[[Call], bool], until: float, digits: Sequence[int]) -> None:
    """Look for smaller calls that differ, until there is none or time is up.

    Args:
        call: a call that differs.
        differs: returns whether another does, too.
        until: when to stop.
        digits: the numbers of decimals to which elements are rounded.
    """
    tries = _iter_smaller(call, digits)
    while measure_time() < until and (smaller := next(tries, None)) is not None:
        if differs(smaller):
            tries = _iter_smaller(smaller, digits)


def _iter_smaller(call: Call, digits: Sequence[int]) -> Iterator[Call]:
    """Yield calls that are simpler by one step, the largest steps first."""
    if call.argnums is not None:
        yield replace(call, argnums=None)
    arrays = [a for a in flatten(call.args) if isinstance(a, np.ndarray)]
    rank = max((a.ndim for a in arrays), default=0)
    if rank > 1:  # an array without axes often takes another branch
        yield _change_call(call, lambda a: a[0] if a.ndim == rank else a)
    for size in sorted({n for a in arrays for n in a.shape if n > 1}, reverse=True):
        for to in sorted({1, size // 2, size - 1}):

            def cut(array: Any, size: int = size, to: int = to) -> Any:
                return array[tuple(slice(to if n == size else n) for n in array.shape)]

            yield _change_call(call, cut)
            if any(type(v) is int and v == size for v in call.args):
                yield _change_call(call, cut, {size: to})
    for count in digits:
        rounded = _change_call(call, partial(_round_entries, digits=count))
        if len(rounded.write_arguments()) < len(call.write_arguments()):
            yield rounded
    if call.seed:
        yield replace(call, seed=0)


def _round_entries(array: Any, digits: int) -> Any:
    return np.round(array, digits) if array.dtype.kind in "fc" else array


def _change_call(call: Call, change: Callable[[Any], Any], integers: dict[int, int] | None = None) -> Call:
    """Return a call with other arrays, and other integers among its arguments."""

    def changed(value: Any) -> Any:
        if isinstance(value, np.ndarray):
            return np.asarray(change(value))
        return type(value)(map(changed, value)) if type(value) in {list, tuple} else value

    args = [(integers or {}).get(a, a) if type(a) is int else changed(a) for a in call.args]
    return replace(call, args=tuple(args), recipe=())
