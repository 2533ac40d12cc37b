"""Views: affine addresses over grid and block as reshape, slice and transpose of flat memory, where they are that.

`plan` computes with integers only. Memory of `length` elements is divided into rows of the largest stride, each row
into rows of the next stride, down to single elements: one dimension (`Level`) for each stride. Each index of the
address takes a range of rows of its dimension; the start of the range may depend on loop variables.
"""

import dataclasses
import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
from jax import lax

from fnjax.triton.values.affine import LEAD, Form, Sym, laid


@dataclasses.dataclass
class Axis:
    """Range of indices, 0 to size - 1, with one stride.

    Attributes:
        size: the number of indices.
        stride: the distance of neighbours in memory.
        parts: the axes of grid and block that were merged into it, as (axis, size), slowest first.
        coefs: its coefficient in each condition.
    """

    size: int
    stride: int
    parts: list
    coefs: list


@dataclasses.dataclass(frozen=True)
class Level:
    """Dimension of a view: `count` rows of `stride` elements, of which rows start + low to start + high are taken.

    Attributes:
        stride: elements of a row.
        count: rows that memory has.
        start: the constant part of the first row.
        syms: loop variables and coefficients, in rows, that are added to `start`.
        low: the first index that is not cut off by conditions or by the end of memory.
        high: the index after the last one that is not cut off.
        size: the number of indices of the axis.
        before: rows of padding in front, so that a start that depends on loops stays inside.
        after: rows of padding at the end.
    """

    stride: int
    count: int
    start: int
    syms: tuple[tuple[Sym, int], ...]
    low: int
    high: int
    size: int
    before: int
    after: int


@dataclasses.dataclass(frozen=True)
class Plan:
    """View of flat memory: its dimensions, the merged axes, and the indices of conditions that must still be tested."""

    levels: tuple[Level, ...]
    axes: tuple[Axis, ...]
    left: tuple[int, ...]
    rank: int

    @property
    def clipped(self) -> bool:
        """Return True where indices are cut off, by conditions or by the ends of memory."""
        return any(level.low > 0 or level.high < level.size for level in self.levels)

    @property
    def moving(self) -> bool:
        """Return True where its start depends on loop variables."""
        return any(level.syms for level in self.levels)

    @property
    def layout(self) -> tuple[tuple[int, int, int, int], ...]:
        """The layout of memory: for each dimension stride, count, and rows of padding in front and at the end."""
        return tuple((level.stride, level.count, level.before, level.after) for level in self.levels)

    @property
    def part(self) -> tuple[int, int, int] | None:
        """The one dimension that is sliced, its first row and the row after its last; None if there is not just one."""
        bounds = [(level.start + level.low, level.start + level.high) for level in self.levels]
        found = [(d, *b) for d, (b, lv) in enumerate(zip(bounds, self.levels, strict=True)) if b != (0, lv.count)]
        whole = self.moving or self.made_up or len(found) != 1
        return None if whole or found[0][1] >= found[0][2] else found[0]

    @property
    def made_up(self) -> bool:
        """Return True where rows of padding are read (they are masked)."""
        return any(level.before or level.after for level in self.levels)


def plan(address: Form, conditions: list[Form], length: int) -> Plan | None:
    """Return the view for an address, or None where it is not a view.

    Args:
        address: an affine expression.
        conditions: affine expressions that are at least 0 where memory is accessed. Those that the view cannot express
            by cutting off indices are listed in `Plan.left`.
        length: the number of elements of memory.
    """
    found = strides_of(address)
    if found is None or length == 0 or any(stride < 0 for stride, _ in found.values()):
        return None
    first = int(address.base.flat[0])
    axes = [Axis(size, stride, [(d, size)], []) for d, (stride, size) in found.items()]
    usable = []
    for position, condition in enumerate(conditions):
        coefs = strides_of(condition)
        if coefs is not None and coefs.keys() <= found.keys():
            own = {id(axis): coefs.get(axis.parts[0][0], (0, 1))[0] for axis in axes}
            usable.append((position, int(condition.base.flat[0]), own, condition.moving))
    for axis in axes:
        axis.coefs = [coefs[id(axis)] for _, _, coefs, _ in usable]
    axes = merged(sorted((a for a in axes), key=lambda a: -a.stride))
    if not axes or axes[-1].stride != 1:
        axes.append(Axis(1, 1, [], [0] * len(usable)))
    facts = [(constant, [axis.coefs[i] for axis in axes], syms) for i, (_, constant, _, syms) in enumerate(usable)]
    found = _place(axes, 0, first, address.moving, length, facts, True)
    if found is None:
        return None
    levels, _, granted = found
    done = {usable[i][0] for i in granted}
    left = tuple(i for i in range(len(conditions)) if i not in done)
    return Plan(tuple(levels), tuple(axes), left, LEAD + len(address.shape))


def strides_of(form: Form) -> dict[int, tuple[int, int]] | None:
    """Return stride and size by axis (leading axes, then the block's) of an expression; None where it is not affine.

    Axes that the expression does not depend on are left out.
    """
    origin = (0,) * LEAD
    affine, strides, sizes = form.base[origin], [0] * LEAD, list(form.base.shape)
    for d, size in enumerate(form.base.shape):
        if size > 1:
            strides[d] = int(form.base[tuple(int(e == d) for e in range(LEAD))] - form.base[origin])
            affine = affine + laid(np.arange(size, dtype=np.int64) * strides[d], d)
    if not (form.base == affine).all():
        return None
    for sym, coefficient in form.syms:
        if sym.axis is not None:
            strides[sym.axis] += coefficient
            sizes[sym.axis] = sym.high + 1
    every = zip((*strides, *form.strides), (*sizes, *form.shape), strict=True)
    return {d: (stride, size) for d, (stride, size) in enumerate(every) if stride and size > 1}


def digits_of(form: Form) -> dict[int, list[int]] | None:
    """Return, by leading axis, the mixed radix in whose digits an expression is affine; None if there is none.

    For example, `pid // 8` and `pid % 8` are affine in the two digits of a grid split into (n // 8, 8).
    """
    found = {}
    for d in range(LEAD):
        sizes = _digits(form.base[tuple(slice(None) if e == d else 0 for e in range(LEAD))])
        if sizes is None:
            return None
        if len(sizes) > 1:
            found[d] = sizes
    cut = form.base.reshape([n for d, size in enumerate(form.base.shape) for n in found.get(d, [size])])
    affine = cut.flat[0]
    for d, size in enumerate(cut.shape):
        if size > 1:
            stride = cut[tuple(int(e == d) for e in range(cut.ndim))] - cut.flat[0]
            affine = affine + (np.arange(size) * stride).reshape([size if e == d else 1 for e in range(cut.ndim)])
    return found if (cut == affine).all() else None


def _digits(numbers):
    """Return the mixed radix, slowest digit first, in whose digits a sequence is affine; None if there is none."""
    sizes: list[int] = []
    while len(numbers) > 1:
        uneven = np.flatnonzero(numbers != numbers[0] + np.arange(len(numbers)) * (numbers[1] - numbers[0]))
        run = int(uneven[0]) if uneven.size else len(numbers)
        if len(numbers) % run:
            return None
        sizes.insert(0, run)
        numbers = numbers[::run]
    return sizes or [1]


def merged(axes):
    """Return the axes with neighbours merged that form one longer range, in memory and in all conditions."""
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
    """Return dimensions from axis `at` on, the elements of a row that they reach, and the conditions they express.

    Args:
        axes: all axes, by falling stride.
        at: the index of the axis to place.
        offset: the constant part of the address inside of a row.
        syms: loop variables and coefficients that are still to be placed.
        limit: the number of elements of the row.
        facts: of each condition its constant, its coefficient for each axis, and its loop variables.
        outermost: True for the first axis, which may leave memory.

    Returns:
        None where rows would overlap.
    """
    axis = axes[at]
    stride = axis.stride
    own = tuple((s, c // stride) for s, c in syms if c % stride == 0)
    rest = tuple((s, c) for s, c in syms if c % stride)
    moves = [sum(min(c * s.low, c * s.high) for s, c in own), sum(max(c * s.low, c * s.high) for s, c in own)]
    for start in (offset // stride, offset // stride + 1):
        taken = set()
        low, high = 0, axis.size  # range of indices, where nothing depends on loop variables
        first, end = start + moves[0], start + moves[1] + axis.size  # range of rows, over all values of loop variables
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
                # It bounds the row for every value of the loop variables: coef · (row - start) + constant >= 0.
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
        if not own:  # cut off indices outside of memory
            low, high = max(low, -start), min(high, there - start)
            low, high = (0, 0) if high <= low else (low, high)
            before = after = 0
        else:
            before, after = max(0, -(start + moves[0])), max(0, start + moves[1] + axis.size - there)
            before, after = min(before, axis.size), min(after, axis.size)  # a start farther outside reads padding only
        level = Level(stride, there, start, own, low, high, axis.size, before, after)
        return [level, *deeper], (0 if empty else (end - 1) * stride + reach), granted | taken
    return None


def cut(memory, layout):
    """Return memory with one axis for each dimension of a layout; an incomplete last row is padded with zeros."""
    out = memory
    for stride, count, before, after in layout:
        missing = count * stride - out.shape[-1]
        if missing:
            out = jnp.pad(out, [(0, 0)] * (out.ndim - 1) + [(0, missing)])
        out = out.reshape(*out.shape[:-1], count, stride)
        if before or after:
            out = jnp.pad(out, [(0, 0)] * (out.ndim - 2) + [(before, after), (0, 0)])
    return out.reshape(out.shape[:-1])


def _starts(plan):
    """Return the first row of each dimension, with padding; an array where it depends on loop variables."""
    starts: list[Any] = []
    for level in plan.levels:
        start: Any = level.start + level.low + level.before
        for sym, coefficient in level.syms:
            start = start + sym.value * coefficient
        if level.before or level.after:
            start = jnp.clip(start, 0, level.before + level.count + level.after - level.size)
        starts.append(start)
    return starts


def read(rows, plan):
    """Return the view's elements, indices low to high of each dimension, from memory as `cut` returns it."""
    sizes = [level.high - level.low for level in plan.levels]
    if plan.moving:
        return lax.dynamic_slice(rows, _starts(plan), sizes)
    return lax.slice(rows, _starts(plan), [start + size for start, size in zip(_starts(plan), sizes, strict=True)])


def write(memory, plan, value):
    """Return flat memory with the view's elements replaced by `value`, which has the shape that `read` returns."""
    rows = cut(memory, plan.layout)
    new = (
        value if value.shape == rows.shape and not plan.moving else lax.dynamic_update_slice(rows, value, _starts(plan))
    )
    lengths = [memory.shape[0], *(level.stride for level in plan.levels)]
    for depth in reversed(range(len(plan.levels))):
        new = new.reshape(*new.shape[:depth], -1)[..., : lengths[depth]]
    return new


def to_block(data, plan, fill=None):
    """Return what `read` returned as an array over leading and block axes; cut-off indices hold `fill` or zero."""
    if plan.clipped:
        fill = jnp.zeros((), data.dtype) if fill is None else jnp.asarray(fill, data.dtype)
        data = lax.pad(data, fill, [(level.low, level.size - level.high, 0) for level in plan.levels])
    parts = list(itertools.chain.from_iterable(axis.parts for axis in plan.axes))
    data = data.reshape([size for _, size in parts])
    data = data.transpose(sorted(range(len(parts)), key=lambda i: parts[i][0]))
    sizes = dict(parts)
    return data.reshape([sizes.get(d, 1) for d in range(plan.rank)])


def from_block(value, plan):
    """Return an array over leading and block axes in the shape that `write` takes: the inverse of `to_block`."""
    parts = list(itertools.chain.from_iterable(axis.parts for axis in plan.axes))
    ordered = sorted(parts)
    value = value.reshape([size for _, size in ordered])
    value = value.transpose([ordered.index(part) for part in parts])
    value = value.reshape([axis.size for axis in plan.axes])
    bounds = [slice(level.low, level.high) for level in plan.levels]
    return value[tuple(bounds)]
