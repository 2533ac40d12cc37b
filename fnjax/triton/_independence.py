"""Whether turns of a loop could hear of each other through memory: not if each keeps to addresses of its own."""

import numpy as np

from fnjax.triton._forms import LEAD

COMMUTING = {"add", "max", "min", "and", "or", "xor"}  # atomics whose order leaves no trace


def independent(side):
    """Whether what the turns of a loop read and write is the same in any order of its statements.

    Each statement is executed for all turns before the next one is. That changes nothing for what is read only, for a
    single store (of one address the last turn's value stays), for atomics of one kind, and where the addresses of one
    turn, of all statements, lie apart from those of the others.
    """
    for buffer in {access.buffer for access in side.accesses if access.kind != "read"}:
        here = [access for access in side.accesses if access.buffer == buffer]
        kinds = {access.kind for access in here}
        alone = len(here) == 1 and here[0].traced == side.traced
        if not alone and not (len(kinds) == 1 and kinds <= COMMUTING) and not _apart(here, side.count):
            return False
    return True


def _apart(accesses, count):
    """Whether all addresses move by one step each turn, and reach less far than that within a turn."""
    reaches = [_reach(access, count) for access in accesses]
    if None in reaches or len({step for step, _, _ in reaches}) != 1:
        return False
    step, low, high = reaches[0]
    for _, other_low, other_high in reaches[1:]:
        low, high = np.minimum(low, other_low), np.maximum(high, other_high)
    return bool((high - low < abs(step)).all())


def _reach(access, count):
    """The step of an access's address, and the first and last address of each program in the first turn."""
    form = access.form
    if form is None or form.base.shape[count.axis] > 1:
        return None
    step = dict(form.syms).get(count, 0)
    low = high = form.base
    spans = [(s * first, s * last) for s, (first, last) in zip(form.strides, _lanes(access), strict=True)]
    for sym, coefficient in form.syms:
        if sym.axis is not None and sym.axis < count.axis:  # of a loop around this one: as of another program
            low, high = low + sym.value * coefficient, high + sym.value * coefficient
        elif sym is not count:
            spans.append((coefficient * sym.low, coefficient * sym.high))
    return step, low + sum(map(min, spans)), high + sum(map(max, spans))


def _lanes(access):
    """First and last index along each axis of the block, where conditions bound them for all programs and turns."""
    found = [[0, n - 1] for n in access.form.shape]
    for condition in access.conditions:
        axes = [d for d, stride in enumerate(condition.strides) if stride]
        if len(axes) != 1 or condition.syms or (condition.base != condition.base[(0,) * LEAD]).any():
            continue
        (axis,), constant = axes, int(condition.base[(0,) * LEAD])
        coefficient = condition.strides[axis]
        if coefficient < 0:  # constant + coefficient * index >= 0
            found[axis][1] = min(found[axis][1], constant // -coefficient)
        else:
            found[axis][0] = max(found[axis][0], -(constant // coefficient))
    return [(first, max(first, last)) for first, last in found]
