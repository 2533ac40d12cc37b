"""Test whether the iterations of a vectorised loop are independent, by the memory addresses that they access."""

from __future__ import annotations

from typing import Any

import numpy as np

from fnjax.triton.values.affine import LoopVariable
from fnjax.triton.values.state import LoopAccess, VectorizedLoop

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
        if not alone and not (len(kinds) == 1 and kinds <= COMMUTING) and not _disjoint(here, side.variable):
            return False
    return True


def _disjoint(accesses: Any, variable: LoopVariable) -> bool:
    """Return True where all addresses advance by one step per iteration and span less than it within an iteration."""
    reaches = [_reach(access, variable) for access in accesses]
    if None in reaches or len({step for step, _, _ in reaches}) != 1:
        return False
    step, low, high = reaches[0]
    for _, other_low, other_high in reaches[1:]:
        low, high = np.minimum(low, other_low), np.maximum(high, other_high)
    return bool((high - low < abs(step)).all())


def _reach(access: LoopAccess, variable: LoopVariable) -> Any:
    """Return the step of an access's address, and by program the first and last address in the first iteration.

    None where the address is not affine in the loop variable.
    """
    affine = access.affine
    if affine is None or affine.base.shape[variable.axis] > 1:
        return None
    step = dict(affine.terms).get(variable, 0)
    low = high = affine.base
    spans = [(s * first, s * last) for s, (first, last) in zip(affine.strides, _lanes(access), strict=True)]
    for other, coefficient in affine.terms:
        if (
            other.axis is not None and other.axis < variable.axis
        ):  # an outer loop, vectorised: as for different programs
            low, high = low + other.value * coefficient, high + other.value * coefficient
        elif other is not variable:
            spans.append((coefficient * other.low, coefficient * other.high))
    return step, low + sum(map(min, spans)), high + sum(map(max, spans))


def _lanes(access: LoopAccess) -> Any:
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
