"""Plans: an affine address over grid and block as a view of flat memory (reshape, slice, transpose), where it is one.

`plan` works on integers alone. Memory of `length` elements is cut into rows of the largest stride, each row into rows
of the next one, down to elements; each axis takes a run of such rows, from a start that may hold loop variables.
"""

import dataclasses
import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from fnjax.triton._forms import LEAD, Form, Sym


@dataclasses.dataclass
class Axis:
    """Indices 0 to size - 1 at a stride, merged from `parts` (axis of grid and block, size); coefs in conditions."""

    size: int
    stride: int
    parts: list
    coefs: list


@dataclasses.dataclass(frozen=True)
class Level:
    """One cut: rows of `stride`, `count` of them, of which those from start + low to start + high are taken."""

    stride: int
    count: int
    start: int
    syms: tuple[tuple[Sym, int], ...]
    low: int
    high: int
    size: int
    before: int  # rows to be made up in front and behind, so that a start that loops make cannot miss
    after: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """The cuts, the axes that come of them, and the indices of conditions that are left to be tested."""

    levels: tuple[Level, ...]
    axes: tuple[Axis, ...]
    left: tuple[int, ...]
    rank: int

    @property
    def clipped(self) -> bool:
        """Whether indices are cut off because of conditions or of the memory's ends."""
        return any(level.low > 0 or level.high < level.size for level in self.levels)

    @property
    def made_up(self) -> bool:
        """Whether rows are read that are not there (they are masked)."""
        return any(level.before or level.after for level in self.levels)


def plan(address: Form, conditions: list[Form], length: int) -> Plan | None:
    """The view that an address is, or None. Conditions that the view cannot grant are left."""
    first = int(address.base.flat[0])
    axes = _axes(address, first)
    if axes is None or length == 0:
        return None
    usable = []
    for position, condition in enumerate(conditions):
        found = _coefficients(condition, axes)
        if found is not None:
            usable.append((position, *found, condition.syms))
    for axis in axes:
        axis.coefs = [coefs[id(axis)] for _, _, coefs, _ in usable]
    axes = _merged(sorted((a for a in axes), key=lambda a: -a.stride))
    if not axes or axes[-1].stride != 1:
        axes.append(Axis(1, 1, [], [0] * len(usable)))
    facts = [(constant, [axis.coefs[i] for axis in axes], syms) for i, (_, constant, _, syms) in enumerate(usable)]
    found = _place(axes, 0, first, address.syms, length, facts, True)
    if found is None:
        return None
    levels, _, granted = found
    done = {usable[i][0] for i in granted}
    left = tuple(i for i in range(len(conditions)) if i not in done)
    return Plan(tuple(levels), tuple(axes), left, LEAD + len(address.shape))


def _axes(address, first):
    """The axes that an address depends on, None if it is not affine in the grid, or runs backwards."""
    axes, affine = [], np.full((1,) * LEAD, first, np.int64)
    for d in range(LEAD):
        size = address.base.shape[d]
        if size > 1:
            index = [0] * LEAD
            index[d] = 1
            stride = int(address.base[tuple(index)]) - first
            wide = [1] * LEAD
            wide[d] = size
            affine = affine + (np.arange(size, dtype=np.int64) * stride).reshape(wide)
            if stride:
                axes.append(Axis(size, stride, [(d, size)], []))
    if not np.array_equal(np.broadcast_to(affine, address.base.shape), address.base):
        return None
    for d, (size, stride) in enumerate(zip(address.shape, address.strides, strict=True)):
        if stride and size > 1:
            axes.append(Axis(size, stride, [(LEAD + d, size)], []))
    return None if any(axis.stride < 0 for axis in axes) else axes


def _coefficients(condition, axes):
    """A condition's constant and its coefficient for each axis; None if it depends on anything else."""
    first = int(condition.base.flat[0])
    found = _axes_of_condition(condition, first)
    if found is None:
        return None
    own = {id(axis): found.pop(axis.parts[0][0], 0) for axis in axes}
    return None if any(found.values()) else (first, own)


def _axes_of_condition(condition, first):
    found, affine = {}, np.full((1,) * LEAD, first, np.int64)
    for d in range(LEAD):
        size = condition.base.shape[d]
        if size > 1:
            index = [0] * LEAD
            index[d] = 1
            found[d] = int(condition.base[tuple(index)]) - first
            wide = [1] * LEAD
            wide[d] = size
            affine = affine + (np.arange(size, dtype=np.int64) * found[d]).reshape(wide)
    if not np.array_equal(np.broadcast_to(affine, condition.base.shape), condition.base):
        return None
    for d, (size, stride) in enumerate(zip(condition.shape, condition.strides, strict=True)):
        if stride and size > 1:
            found[LEAD + d] = stride
    return found


def _merged(axes):
    """Neighbours that make one longer run together, for conditions as well."""
    out: list[Axis] = []
    for axis in axes:
        last = out[-1] if out else None
        if (
            last is not None
            and last.stride == axis.stride * axis.size
            and all(a == b * axis.size for a, b in zip(last.coefs, axis.coefs, strict=True))
        ):
            out[-1] = Axis(last.size * axis.size, axis.stride, last.parts + axis.parts, axis.coefs)
        else:
            out.append(axis)
    return out


def _place(axes, at, offset, syms, limit, facts, outermost):
    """The cuts from axis `at` on, how far into a row they reach, what they grant; None where rows overlap."""
    axis = axes[at]
    stride = axis.stride
    own = tuple((s, c // stride) for s, c in syms if c % stride == 0)
    rest = tuple((s, c) for s, c in syms if c % stride)
    moves = [sum(min(c * s.low, c * s.high) for s, c in own), sum(max(c * s.low, c * s.high) for s, c in own)]
    for start in (offset // stride, offset // stride + 1):
        taken = set()
        low, high = 0, axis.size  # of indices, where nothing moves
        first, end = start + moves[0], start + moves[1] + axis.size  # of rows
        for i, (constant, coefs, moving) in enumerate(facts):
            coef = coefs[at]
            if coef == 0 or any(c for j, c in enumerate(coefs) if j != at):
                continue
            if not own and not moving:
                taken.add(i)
                if coef > 0:
                    low = max(low, -(constant // coef))
                else:
                    high = min(high, constant // -coef + 1)
            elif dict(moving) == {s: c * coef for s, c in own}:
                # It bounds the row itself, wherever the loop is: coef · (row - start) + constant >= 0.
                if coef > 0:
                    first = max(first, start - constant // coef)
                else:
                    end = min(end, start + constant // -coef + 1)
        high = max(high, low)
        if not own:
            first, end = start + low, start + high
        there = -(-limit // stride)
        deeper, reach, granted = [], 1, set()
        if at + 1 < len(axes):
            found = _place(axes, at + 1, offset - start * stride, rest, stride, facts, False)
            if found is None:
                continue
            deeper, reach, granted = found
        elif rest or offset != start * stride:
            continue
        empty = end <= first
        if not outermost and not empty and (first < 0 or (end - 1) * stride + reach > limit):
            continue
        if not own:  # what lies outside of memory is nobody's
            low, high = max(low, -start), min(high, there - start)
            low, high = (0, 0) if high <= low else (low, high)
            before = after = 0
        else:
            before, after = max(0, -(start + moves[0])), max(0, start + moves[1] + axis.size - there)
            before, after = min(before, axis.size), min(after, axis.size)  # from farther outside all rows are made up
        level = Level(stride, there, start, own, low, high, axis.size, before, after)
        return [level, *deeper], (0 if empty else (end - 1) * stride + reach), granted | taken
    return None


def _start(level):
    total: Any = level.start + level.low + level.before
    for sym, coefficient in level.syms:
        total = total + sym.value * coefficient
    return total


def _cut(rows, level):
    """(…, length) as (…, count, stride), made up with zeros where the last row is not whole."""
    missing = level.count * level.stride - rows.shape[-1]
    if missing:
        rows = jnp.pad(rows, [(0, 0)] * (rows.ndim - 1) + [(0, missing)])
    return rows.reshape(*rows.shape[:-1], level.count, level.stride)


def read(memory, plan):
    """What the view holds, one axis for each level: the indices from low to high of each."""
    out = memory
    for level in plan.levels:
        out = _cut(out, level)
        axis = out.ndim - 2
        if level.before or level.after:
            out = jnp.pad(out, [(level.before, level.after) if d == axis else (0, 0) for d in range(out.ndim)])
        start = _start(level)
        if level.syms:
            start = jnp.clip(start, 0, out.shape[axis] - level.size) if level.before or level.after else start
            out = lax.dynamic_slice_in_dim(out, start, level.size, axis)
        else:
            out = lax.slice_in_dim(out, start, start + level.high - level.low, axis=axis)
    return out.reshape(out.shape[:-1])


def write(memory, plan, value):
    """Memory with the view's elements replaced; `value` as `read` gives it."""
    return _write(memory, plan.levels, value, 0)


def _write(rows, levels, value, depth):
    level = levels[0]
    cut = _cut(rows, level)
    axis = cut.ndim - 2
    taken = level.high - level.low
    whole = not level.syms and taken == level.count
    if len(levels) == 1:
        new = value[..., None]
    else:
        old = cut if whole else lax.dynamic_slice_in_dim(cut, _start(level), taken, axis)
        new = _write(old, levels[1:], value, depth + 1)
    if not whole:
        new = lax.dynamic_update_slice_in_dim(cut, new, _start(level), axis)
    new = new.reshape(*rows.shape[:-1], level.count * level.stride)
    return new[..., : rows.shape[-1]]


def to_block(data, plan, fill=None):
    """What `read` gives as an array of grid and block, of size 1 along other axes; cut-off indices hold `fill`."""
    if plan.clipped:
        fill = jnp.zeros((), data.dtype) if fill is None else jnp.asarray(fill, data.dtype)
        data = lax.pad(data, fill, [(level.low, level.size - level.high, 0) for level in plan.levels])
    parts = list(itertools.chain.from_iterable(axis.parts for axis in plan.axes))
    data = data.reshape([size for _, size in parts])
    data = data.transpose(sorted(range(len(parts)), key=lambda i: parts[i][0]))
    sizes = dict(parts)
    return data.reshape([sizes.get(d, 1) for d in range(plan.rank)])


def from_block(value, plan):
    """The inverse: an array of grid and block (full where the view has axes, else of size 1) as `write` takes it."""
    parts = list(itertools.chain.from_iterable(axis.parts for axis in plan.axes))
    ordered = sorted(parts)
    value = value.reshape([size for _, size in ordered])
    value = value.transpose([ordered.index(part) for part in parts])
    value = value.reshape([axis.size for axis in plan.axes])
    bounds = [slice(level.low, level.high) for level in plan.levels]
    return value[tuple(bounds)]
