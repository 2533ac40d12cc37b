"""Views: affine addresses over grid and block as reshape, slice and transpose of flat memory, where they are that.

`view` computes with integers only. Memory of `length` elements is divided into rows of the largest stride, each row
into rows of the next stride, down to single elements: one dimension (`Dimension`) for each stride. Each index of the
address takes a range of rows of its dimension; the start of the range may depend on loop variables.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from fnjax.triton.values import types
from fnjax.triton.values.affine import MANY, Affine, Terms, along_axis

Layout = tuple[tuple[int, int, int, int], ...]  # by dimension: stride, count, rows of padding in front and at the end


Fact = tuple[int, list[int], Terms]  # of a condition: constant, coefficient for each axis, loop variables


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
    parts: list[tuple[int, int]]
    coefficients: list[int]


@dataclasses.dataclass(frozen=True)
class Dimension:
    """Dimension of a view: `count` rows of `stride` elements, of which rows start + low to start + high are taken.

    Attributes:
        stride: elements of a row.
        count: rows that memory has.
        start: the constant part of the first row.
        terms: loop variables and coefficients, in rows, that are added to `start`.
        low: the first index that is not cut off by conditions or by the end of memory.
        high: the index after the last one that is not cut off.
        size: the number of indices of the axis.
        before: rows of padding in front, so that a start that depends on loops stays inside.
        after: rows of padding at the end.
    """

    stride: int
    count: int
    start: int
    terms: Terms
    low: int
    high: int
    size: int
    before: int
    after: int

    @property
    def layout(self) -> tuple[int, int, int, int]:
        """Stride, number of rows, and rows of padding in front and at the end."""
        return self.stride, self.count, self.before, self.after

    @property
    def unbounded(self) -> bool:
        """Return True for a single row that a loop of unknown length moves: memory is not padded, a copy, for it."""
        return self.size == 1 and any(variable.high == MANY for variable, _ in self.terms)

    @property
    def first(self) -> Any:
        """The first row, without padding; an array where it depends on loop variables."""
        return sum((v.value * c for v, c in self.terms), start=self.start + self.low)


@dataclasses.dataclass(frozen=True)
class View:
    """View of flat memory.

    Attributes:
        dimensions: its dimensions.
        axes: the merged axes, one for each dimension.
        remaining: the indices of conditions that must still be tested.
        leading: the number of leading axes.
        rank: the number of leading and block axes.
    """

    dimensions: tuple[Dimension, ...]
    axes: tuple[Axis, ...]
    remaining: tuple[int, ...]
    leading: int
    rank: int

    @property
    def clipped(self) -> bool:
        """Return True where indices are cut off, by conditions or by the ends of memory."""
        return any(d.low > 0 or d.high < d.size for d in self.dimensions)

    @property
    def tail(self) -> tuple[int, int] | None:
        """The one axis of the block whose last indices are cut off, and the number of those that are not; else None."""
        cut = [(axis.parts, d) for axis, d in zip(self.axes, self.dimensions, strict=True) if d.low or d.high < d.size]
        if len(cut) != 1 or len(cut[0][0]) != 1:
            return None
        ((axis, _),), dimension = cut[0]
        return None if axis < self.leading or dimension.low or not dimension.high else (axis, dimension.high)

    @property
    def dynamic(self) -> bool:
        """Return True where its start depends on loop variables."""
        return any(d.terms for d in self.dimensions)

    @property
    def layout(self) -> Layout:
        """The layout of memory: for each dimension stride, count, and rows of padding in front and at the end."""
        return tuple(d.layout for d in self.dimensions)

    @property
    def single_slice(self) -> tuple[int, int, int] | None:
        """The one dimension that is sliced, its first row and the row after its last; None if there is not just one."""
        bounds = [(d.start + d.low, d.start + d.high) for d in self.dimensions]
        found = [(i, *b) for i, (b, d) in enumerate(zip(bounds, self.dimensions, strict=True)) if b != (0, d.count)]
        whole = self.dynamic or self.padded or len(found) != 1
        return None if whole or found[0][1] >= found[0][2] else found[0]

    @property
    def padded(self) -> bool:
        """Return True where rows of padding are read (they are masked)."""
        return any(d.before or d.after for d in self.dimensions)


def find_view(address: Affine, conditions: list[Affine], length: int) -> View | None:
    """Return the view for an address, or None where it is not a view.

    Args:
        address: an affine expression.
        conditions: affine expressions that are at least 0 where memory is accessed. Those that the view cannot express
            by cutting off indices are listed in `View.remaining`.
        length: the number of elements of memory.
    """
    found = strides_of(address)
    if found is None or length == 0 or any(stride < 0 for stride, _ in found.values()):
        return None
    first = int(address.base.flat[0])
    axes = [Axis(size, stride, [(d, size)], []) for d, (stride, size) in found.items()]
    usable = []
    for position, condition in enumerate(conditions):
        coefficients = strides_of(condition)
        if coefficients is not None and coefficients.keys() <= found.keys():
            own = {id(axis): coefficients.get(axis.parts[0][0], (0, 1))[0] for axis in axes}
            usable.append((position, int(condition.base.flat[0]), own, condition.traced_variables))
    for axis in axes:
        axis.coefficients = [coefficients[id(axis)] for _, _, coefficients, _ in usable]
    axes = merged(sorted((a for a in axes), key=lambda a: -a.stride))
    strides = {abs(c) for _, c in address.traced_variables} - {axis.stride for axis in axes}
    # With a dimension for each loop variable, iterations access single rows of it (`streams`).
    fitted = None
    for more in (strides, ()) if strides else ((),):
        every = sorted((*axes, *(Axis(1, stride, [], [0] * len(usable)) for stride in more)), key=lambda a: -a.stride)
        if not every or every[-1].stride != 1:
            every.append(Axis(1, 1, [], [0] * len(usable)))
        facts = [(start, [a.coefficients[i] for a in every], terms) for i, (_, start, _, terms) in enumerate(usable)]
        fitted = _fit_dimensions(every, 0, first, address.traced_variables, length, facts, True)
        if fitted is not None:
            break
    if fitted is None:
        return None
    dimensions, _, expressed = fitted
    done = {usable[i][0] for i in expressed}
    remaining = tuple(i for i in range(len(conditions)) if i not in done)
    return View(tuple(dimensions), tuple(every), remaining, address.base.ndim, address.base.ndim + len(address.shape))


def strides_of(affine: Affine) -> dict[int, tuple[int, int]] | None:
    """Return stride and size by axis (leading axes, then the block's) of an expression; None where it is not affine.

    Axes that the expression does not depend on are left out.
    """
    rank = affine.base.ndim
    origin = (0,) * rank
    expected, strides, sizes = affine.base[origin], [0] * rank, list(affine.base.shape)
    for d, size in enumerate(affine.base.shape):
        if size > 1:
            strides[d] = int(affine.base[tuple(int(e == d) for e in range(rank))] - affine.base[origin])
            expected = expected + along_axis(np.arange(size, dtype=np.int64) * strides[d], d, rank)
    if not (affine.base == expected).all():
        return None
    for variable, coefficient in affine.terms:
        if variable.axis is not None:
            strides[variable.axis] += coefficient
            sizes[variable.axis] = variable.high + 1
    every = zip((*strides, *affine.strides), (*sizes, *affine.shape), strict=True)
    return {d: (stride, size) for d, (stride, size) in enumerate(every) if stride and size > 1}


def mixed_radix_of(affine: Affine) -> dict[int, list[int]] | None:
    """Return, by leading axis, the mixed radix in whose digits an expression is affine; None if there is none.

    For example, `pid // 8` and `pid % 8` are affine in the two digits of a grid split into (n // 8, 8).
    """
    found = {}
    for d in range(affine.base.ndim):
        sizes = _mixed_radix(affine.base[tuple(slice(None) if e == d else 0 for e in range(affine.base.ndim))])
        if sizes is None:
            return None
        if len(sizes) > 1:
            found[d] = sizes
    values = affine.base.reshape([n for d, size in enumerate(affine.base.shape) for n in found.get(d, [size])])
    expected = values.flat[0]
    for d, size in enumerate(values.shape):
        if size > 1:
            stride = values[tuple(int(e == d) for e in range(values.ndim))] - values.flat[0]
            wide = [size if e == d else 1 for e in range(values.ndim)]
            expected = expected + (np.arange(size) * stride).reshape(wide)
    return found if (values == expected).all() else None


def _mixed_radix(numbers: np.ndarray) -> list[int] | None:
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


def merged(axes: Iterable[Axis]) -> list[Axis]:
    """Return the axes with neighbours merged that form one longer range, in memory and in all conditions."""
    out: list[Axis] = []
    for axis in axes:
        last = out[-1] if out else None
        if (
            last is not None
            and last.stride == axis.stride * axis.size
            and all(a == b * axis.size for a, b in zip(last.coefficients, axis.coefficients, strict=True))
        ):
            out[-1] = Axis(last.size * axis.size, axis.stride, last.parts + axis.parts, axis.coefficients)
        else:
            out.append(axis)
    return out


def _fit_dimensions(
    axes: list[Axis], at: int, offset: int, terms: Terms, limit: int, facts: list[Fact], outermost: bool
) -> tuple[list[Dimension], int, set[int]] | None:
    """Return dimensions from axis `at` on, the elements of a row that they reach, and the conditions they express.

    Args:
        axes: all axes, by falling stride.
        at: the index of the axis to place.
        offset: the constant part of the address inside of a row.
        terms: loop variables and coefficients that are still to be placed.
        limit: the number of elements of the row.
        facts: one of each condition.
        outermost: True for the first axis, which may leave memory.

    Returns:
        None where rows would overlap.
    """
    axis = axes[at]
    stride = axis.stride
    own = tuple((s, c // stride) for s, c in terms if c % stride == 0)
    rest = tuple((s, c) for s, c in terms if c % stride)
    moves = [sum(min(c * s.low, c * s.high) for s, c in own), sum(max(c * s.low, c * s.high) for s, c in own)]
    for start in (offset // stride, offset // stride + 1):
        taken = set()
        low, high = 0, axis.size  # range of indices, where nothing depends on loop variables
        first, end = start + moves[0], start + moves[1] + axis.size  # range of rows, over all values of loop variables
        for i, (constant, coefficients, traced) in enumerate(facts):
            coefficient = coefficients[at]
            if coefficient == 0 or any(c for j, c in enumerate(coefficients) if j != at):
                continue
            if not own and not traced:
                taken.add(i)
                if coefficient > 0:
                    low = max(low, -(constant // coefficient))
                else:
                    high = min(high, constant // -coefficient + 1)
            elif dict(traced) == {s: c * coefficient for s, c in own}:
                # It bounds the row for every value of the loop variables: coefficient · (row - start) + constant >= 0.
                if coefficient > 0:
                    first = max(first, start - constant // coefficient)
                else:
                    end = min(end, start + constant // -coefficient + 1)
        high = max(high, low)
        if not own:
            first, end = start + low, start + high
        there = -(-limit // stride)
        deeper, reach, expressed = list[Dimension](), 1, set[int]()
        if at + 1 < len(axes):
            found = _fit_dimensions(axes, at + 1, offset - start * stride, rest, stride, facts, False)
            if found is None:
                continue
            deeper, reach, expressed = found
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
        dimension = Dimension(stride, there, start, own, low, high, axis.size, before, after)
        if dimension.unbounded:
            dimension = dataclasses.replace(dimension, before=0, after=0)
        return [dimension, *deeper], (0 if empty else (end - 1) * stride + reach), expressed | taken
    return None


def as_rows(memory: jax.Array, layout: Layout) -> jax.Array:
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


def _starts(view: View) -> list[Any]:
    """Return the first row of each dimension, with padding; an array where it depends on loop variables."""
    starts: list[Any] = []
    for dimension in view.dimensions:
        empty = dimension.low == dimension.high  # all of it is outside of memory, where no slice may start
        start: Any = 0 if empty else dimension.first + dimension.before
        if dimension.before or dimension.after or dimension.unbounded:
            most = dimension.before + dimension.count + dimension.after - dimension.size
            start = jnp.clip(start, 0, most) if dimension.terms else min(max(start, 0), most)
        starts.append(start)
    if view.dynamic:  # of one type: with 64 bits a number would be int64 next to a variable of int32
        kind = jnp.result_type(*starts)
        return [kind.type(start) if isinstance(start, int) else start.astype(kind) for start in starts]
    return starts


def _where_inside(view: View, rows: jax.Array, otherwise: jax.Array) -> jax.Array:
    """Return `rows` where those of unbounded dimensions are in memory, else `otherwise`."""
    for dimension in view.dimensions:
        if dimension.unbounded:
            rows = jnp.where((dimension.first >= 0) & (dimension.first < dimension.count), rows, otherwise)
    return rows


def read(rows: jax.Array, view: View) -> jax.Array:
    """Return the view's elements, indices low to high of each dimension, from memory as `as_rows` returns it."""
    sizes = [d.high - d.low for d in view.dimensions]
    if view.dynamic:
        return _where_inside(view, lax.dynamic_slice(rows, _starts(view), sizes), jnp.zeros((), rows.dtype))
    return lax.slice(rows, _starts(view), [start + size for start, size in zip(_starts(view), sizes, strict=True)])


def write(rows: jax.Array, view: View, value: jax.Array) -> jax.Array:
    """Return memory in the layout of a view with its elements replaced by `value`, which has the shape of `read`'s."""
    if value.shape == rows.shape and not view.dynamic:
        return value
    if any(dimension.unbounded for dimension in view.dimensions):
        value = _where_inside(view, value, lax.dynamic_slice(rows, _starts(view), value.shape))
    return lax.dynamic_update_slice(rows, value, _starts(view))


def as_flat(rows: jax.Array, layout: Layout, length: int) -> jax.Array:
    """Return memory of `length` elements from its rows: the inverse of `as_rows`."""
    lengths = [length, *(stride for stride, *_ in layout)]
    for depth, (_, count, before, _) in reversed(list(enumerate(layout))):
        rows = lax.slice_in_dim(rows, before, before + count, axis=depth)
        rows = rows.reshape(*rows.shape[:depth], -1)[..., : lengths[depth]]
    return rows


def to_block(data: jax.Array, view: View, fill: types.Number | None = None, without_tail: bool = False) -> jax.Array:
    """Return what `read` returned as an array over leading and block axes.

    Cut-off indices hold `fill` or zero; those of `View.tail` are left out if `without_tail`.
    """
    parts = list(itertools.chain.from_iterable(axis.parts for axis in view.axes))
    if without_tail and view.tail is not None:
        parts = [view.tail if d == view.tail[0] else (d, size) for d, size in parts]
    elif view.clipped:
        padding = jnp.zeros((), data.dtype) if fill is None else jnp.asarray(fill, data.dtype)
        data = lax.pad(data, padding, [(d.low, d.size - d.high, 0) for d in view.dimensions])
    data = data.reshape([size for _, size in parts])
    data = data.transpose(sorted(range(len(parts)), key=lambda i: parts[i][0]))
    sizes = dict(parts)
    return data.reshape([sizes.get(d, 1) for d in range(view.rank)])


def from_block(value: jax.Array, view: View) -> jax.Array:
    """Return an array over leading and block axes in the shape that `write` takes: the inverse of `to_block`."""
    parts = [[d for d, _ in axis.parts] for axis in view.axes]
    ordered = sorted(itertools.chain.from_iterable(parts))
    sizes = [math.prod(value.shape[d] for d in part) for part in parts]
    value = value.reshape([value.shape[d] for d in ordered])
    value = value.transpose([ordered.index(d) for d in itertools.chain.from_iterable(parts)]).reshape(sizes)
    bounds = zip(sizes, view.dimensions, strict=True)
    return value[tuple(slice(None) if size == d.high - d.low else slice(d.low, d.high) for size, d in bounds)]
