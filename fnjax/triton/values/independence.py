"""Test whether the iterations of a loop are independent, by the memory addresses that they access."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

import numpy as np

from fnjax.triton.values.affine import LoopVariable
from fnjax.triton.values.state import LoopAccess, VectorizedLoop

Reach = tuple[int, np.ndarray, np.ndarray, list[tuple[int, int]]]  # what `_reach` returns
COMMUTING = {"add", "max", "min", "and", "or", "xor"}  # atomics whose order does not matter


def independent(side: VectorizedLoop) -> bool:
    """Return True where vectorising a loop does not change what it reads and writes.

    Each statement is executed for all iterations before the next one. That is valid for buffers that are only read, for
    a single store (the last iteration's value stays), for atomics of one kind, and where the addresses of different
    iterations are disjoint.
    """
    for buffer in {access.buffer for access in side.accesses if access.kind != "read"}:
        here = [access for access in side.accesses if access.buffer == buffer]
        kinds = {access.kind for access in here}
        alone = len(here) == 1 and here[0].traced == side.traced
        if alone or (len(kinds) == 1 and kinds <= COMMUTING):
            continue
        if not are_disjoint(here, side.variable, side.variable.high + 1, side.variable.axis):
            return False
    return True


def are_disjoint(
    accesses: Sequence[LoopAccess],
    variable: LoopVariable,
    iterations: int,
    depth: int,
    around: Sequence[LoopVariable] = (),
) -> bool:
    """Return True where no address of an iteration is one of another iteration.

    All must advance by the same step. Two accesses then meet only where it leads, in less than all iterations, from the
    addresses of the one to those of the other; two of the same addresses also do not where all these are different.

    Args:
        accesses: to one buffer.
        variable: the loop's.
        iterations: their number.
        depth: the number of leading axes of the grid and of vectorised loops around it.
        around: the variables of sequential loops around it.
    """
    terms = [set(access.affine.terms) for access in accesses if access.affine is not None]
    shared = {(v, c) for v, c in set.intersection(*terms) if v in around} if terms else set()
    reaches = [reach for access in accesses if (reach := _reach(access, variable, depth, shared)) is not None]
    if len(reaches) < len(accesses) or len({step for step, *_ in reaches}) != 1 or not (step := reaches[0][0]):
        return False
    for (_, low, high, axes), (_, other_low, other_high, others) in itertools.combinations_with_replacement(reaches, 2):
        if axes == others and (low == other_low).all() and are_distinct([*axes, (step, iterations)]):
            continue
        ends = [np.asarray(other_low - high), np.asarray(other_high - low)]
        first, last = (-(-ends[0] // step), ends[1] // step) if step > 0 else (-(-ends[1] // step), ends[0] // step)
        first, last = np.maximum(first, 1 - iterations), np.minimum(last, iterations - 1)
        if ((first <= last) & ((first != 0) | (last != 0))).any():
            return False
    return True


def _reach(
    access: LoopAccess, variable: LoopVariable, depth: int, shared: set[tuple[LoopVariable, int]]
) -> Reach | None:
    """Return the addresses of an access; None where they are not affine in the loop variable.

    Args:
        access: the access.
        variable: the loop variable.
        depth: the number of leading axes, of the grid and of vectorised loops, which are those of `low` and `high`.
        shared: the terms (a loop variable and its coefficient) that all accesses have: they are left out.

    Returns:
        The step from one iteration to the next, each program's lowest and highest address in the first iteration, and
        (stride, size) of each axis of the addresses between them.
    """
    affine, variable = access.affine, variable.range
    if affine is None or any(n > 1 for n in affine.base.shape[depth:]):
        return None
    step = dict(affine.terms).get(variable, 0)
    low = high = affine.base
    axes = [(s, first, last) for s, (first, last) in zip(affine.strides, _lanes(access), strict=True)]
    for other, coefficient in affine.terms:
        if other.axis is not None and other.axis < depth:  # an outer loop, vectorised: as for different programs
            low, high = low + other.value * coefficient, high + other.value * coefficient
        elif other is not variable and (other, coefficient) not in shared:
            axes.append((coefficient, other.low, other.high))
    low = low + sum(min(s * first, s * last) for s, first, last in axes)
    high = high + sum(max(s * first, s * last) for s, first, last in axes)
    return step, low, high, [(s, last - first + 1) for s, first, last in axes]


def are_distinct(axes: Iterable[tuple[int, int]]) -> bool:
    """Return True where all sums of multiples of some strides, given with their numbers, certainly are different."""
    reach = 0
    for stride, size in sorted((abs(s), n) for s, n in axes if n > 1):
        if stride <= reach:
            return False
        reach += stride * (size - 1)
    return True


def _lanes(access: LoopAccess) -> list[tuple[int, int]]:
    """Return the first and last index along each axis of the block that conditions allow in all programs."""
    assert access.affine is not None
    found = [[0, n - 1] for n in access.affine.shape]
    for condition in access.conditions:
        axes = [d for d, stride in enumerate(condition.strides) if stride]
        if len(axes) != 1 or condition.terms or (condition.base != condition.base.flat[0]).any():
            continue
        (axis,), constant = axes, int(condition.base.flat[0])
        coefficient = condition.strides[axis]
        if coefficient < 0:  # constant + coefficient * index >= 0
            found[axis][1] = min(found[axis][1], constant // -coefficient)
        else:
            found[axis][0] = max(found[axis][0], -(constant // coefficient))
    return [(first, max(first, last)) for first, last in found]
