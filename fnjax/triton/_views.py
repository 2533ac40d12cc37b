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

from fnjax.triton._forms import LEAD, Form, Sym, laid


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
    def moving(self) -> bool:
        """Whether it begins where a loop says."""
        return any(level.syms for level in self.levels)

    @property
    def layout(self) -> tuple[tuple[int, int, int, int], ...]:
        """How memory is cut: of each level stride, count, and the rows that are made up."""
        return tuple((level.stride, level.count, level.before, level.after) for level in self.levels)

    @property
    def part(self) -> tuple[int, int, int] | None:
        """Where it is rows of one level and all of the others: which, the first row, and the one behind the last."""
        bounds = [(level.start + level.low, level.start + level.high) for level in self.levels]
        found = [(d, *b) for d, (b, lv) in enumerate(zip(bounds, self.levels, strict=True)) if b != (0, lv.count)]
        whole = self.moving or self.made_up or len(found) != 1
        return None if whole or found[0][1] >= found[0][2] else found[0]

    @property
    def made_up(self) -> bool:
        """Whether rows are read that are not there (they are masked)."""
        return any(level.before or level.after for level in self.levels)


def plan(address: Form, conditions: list[Form], length: int) -> Plan | None:
    """The view that an address is, or None. Conditions that the view cannot grant are left."""
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
    """Stride and size along each axis of grid, loops and block that a form depends on; None if it is not affine."""
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
    """The sizes that axes of the grid are to be cut into so that a form is affine in them, where there are such.

    `pid // 8` runs evenly along both axes of a grid of (n // 8, 8), as `pid % 8` does.
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


def cut(memory, layout):
    """Memory with an axis for each level, made up with zeros where the last row of one is not whole."""
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
    """Where each level begins."""
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
    """What the view holds of memory as `cut` gives it: the indices from low to high of each level."""
    sizes = [level.high - level.low for level in plan.levels]
    if plan.moving:
        return lax.dynamic_slice(rows, _starts(plan), sizes)
    return lax.slice(rows, _starts(plan), [start + size for start, size in zip(_starts(plan), sizes, strict=True)])


def write(memory, plan, value):
    """Memory with the view's elements replaced; `value` as `read` gives it."""
    rows = cut(memory, plan.layout)
    new = (
        value if value.shape == rows.shape and not plan.moving else lax.dynamic_update_slice(rows, value, _starts(plan))
    )
    lengths = [memory.shape[0], *(level.stride for level in plan.levels)]
    for depth in reversed(range(len(plan.levels))):
        new = new.reshape(*new.shape[:depth], -1)[..., : lengths[depth]]
    return new


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
