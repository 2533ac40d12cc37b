"""Affine expressions for integers: a constant for each program, a stride for each axis of the block, loop variables.

Addresses and masks stay affine expressions as long as possible, because an affine address can become a view of memory
(reshape, slice, transpose: `views`) instead of a gather.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import threading
from collections.abc import Iterator, Sequence
from types import ModuleType
from typing import Any, Protocol, TypeVar

import jax
import numpy as np

Shape = tuple[int, ...]
Array = np.ndarray | jax.Array  # NumPy's where its values are known while tracing
OneArray = TypeVar("OneArray", np.ndarray, jax.Array, Array)  # of one kind, which a function keeps
MANY = 2**31 - 1  # the largest value of the variable of a loop whose number of iterations is not known
GRID = 3  # axes that a grid may have
MOST = 5  # leading axes that values may have, before those of the block: axes of the grid (some split) and of loops


class ArrayMap(Protocol):
    """Function of arrays that returns NumPy's for NumPy's, and JAX's for JAX's."""

    def __call__(self, array: OneArray, /) -> OneArray:
        """Return the changed array."""


class _Leading(threading.local):
    """The number of leading axes of all values of the launch that this thread interprets."""

    number = 1


_LEADING = _Leading()


def leading() -> int:
    """Return the number of leading axes that all values have at present: those in use, and at least one.

    Further axes of size 1 would change no results, but XLA's loops over arrays with such axes are up to 4 times slower.
    """
    return _LEADING.number


@contextlib.contextmanager
def with_leading(number: int) -> Iterator[None]:
    """Let values have `number` leading axes while the context lasts; those made before do not fit any more."""
    before, _LEADING.number = _LEADING.number, number
    try:
        yield
    finally:
        _LEADING.number = before


class LoopVariable:
    """Loop variable, with its first and last value, both included.

    Attributes:
        value: its value: a traced scalar, or an array of `MOST` axes along `axis`; None in `range`.
        low: its smallest value.
        high: its largest value.
        axis: the leading axis that its loop is vectorised along; None where the loop is traced sequentially and only
            the range of the variable is known.
    """

    def __init__(self, value: Any, low: int, high: int, axis: int | None = None) -> None:
        self.value, self.low, self.high, self.axis = value, low, high, axis

    @functools.cached_property
    def range(self) -> LoopVariable:
        """The variable without its value where that is a tracer."""
        return LoopVariable(None, self.low, self.high) if self.axis is None else self

    @staticmethod
    def along(axis: int, size: int) -> VectorVariable:
        """Return the variable of a loop with `size` iterations that is vectorised along a leading axis."""
        return VectorVariable(along_axis(np.arange(size, dtype=np.int64), axis, MOST), 0, size - 1, axis)


class VectorVariable(LoopVariable):
    """Loop variable of a vectorised loop: its values are known."""

    value: np.ndarray
    axis: int


def along_axis(numbers: np.ndarray, axis: int, rank: int) -> np.ndarray:
    """Return a vector reshaped to run along one of `rank` leading axes, with size 1 along the others."""
    return numbers.reshape([len(numbers) if d == axis else 1 for d in range(rank)])


Terms = tuple[tuple[LoopVariable, int], ...]  # pairs of loop variable and coefficient


@dataclasses.dataclass(frozen=True)
class Affine:
    """Affine expression over programs, block indices and loop variables.

    Its value is base[program] + Σ strides[d] · index[d] + Σ coefficient · variable, for each index of a block.

    Attributes:
        base: int64 array over the leading axes, of size 1 along those that it does not depend on.
        shape: the block's.
        strides: one for each axis of the block.
        terms: loop variables with their coefficients.
    """

    base: np.ndarray
    shape: Shape = ()
    strides: tuple[int, ...] = ()
    terms: Terms = ()

    def plus(self, other: Affine) -> Affine:
        """Return the sum of two expressions; their shapes are broadcast."""
        a, b = _same_rank(self, other)
        shape = np.broadcast_shapes(a.shape, b.shape)
        strides = tuple(s + t for s, t in zip(a.strides, b.strides, strict=True))
        terms = dict(a.terms)
        for variable, coefficient in b.terms:
            terms[variable] = terms.get(variable, 0) + coefficient
        return Affine(a.base + b.base, shape, strides, tuple((v, c) for v, c in terms.items() if c))

    def times(self, other: Affine) -> Affine | None:
        """Return the product of two expressions, or None where it is not affine.

        One factor must be free of block indices and loop variables, and a single number where the other one has any.
        """
        a, b = _same_rank(self, other)
        if any(a.strides) or a.terms:
            a, b = b, a
        if any(a.strides) or a.terms:
            return None
        if not (any(b.strides) or b.terms):
            return Affine(a.base * b.base, np.broadcast_shapes(a.shape, b.shape), a.strides)
        first = int(a.base.flat[0])
        if not (a.base == first).all():
            return None
        scaled = tuple((s, c * first) for s, c in b.terms if first)
        shape = np.broadcast_shapes(a.shape, b.shape)
        return Affine(b.base * first, shape, tuple(s * first for s in b.strides), scaled)

    def negated(self) -> Affine:
        """Return the expression times -1."""
        strides, terms = tuple(-s for s in self.strides), tuple((v, -c) for v, c in self.terms)
        return Affine(-self.base, self.shape, strides, terms)

    def limits(self) -> tuple[int, int]:
        """Return bounds of its value over all programs, indices and iterations, both included."""
        low, high = int(self.base.min()), int(self.base.max())
        spans = [(0, s * (n - 1)) for s, n in zip(self.strides, self.shape, strict=True)]
        spans += [(c * variable.low, c * variable.high) for variable, c in self.terms]
        return low + sum(min(s) for s in spans), high + sum(max(s) for s in spans)

    def reshaped(self, shape: Sequence[int], strides: Sequence[int]) -> Affine:
        """Return the same expression for a block of another shape, with new strides."""
        return dataclasses.replace(self, shape=tuple(shape), strides=tuple(strides))

    @property
    def concrete(self) -> bool:
        """Return True where all values are known: no loop variable is traced."""
        return all(variable.axis is not None for variable, _ in self.terms)

    @property
    def traced_variables(self) -> Terms:
        """The loop variables of sequentially traced loops, with their coefficients."""
        return tuple((variable, c) for variable, c in self.terms if variable.axis is None)

    def untraced(self) -> Affine:
        """Return a copy with `MOST` leading axes that holds no tracers: variables of traced loops keep only a range."""
        held = ((v.range, c) for v, c in self.terms)
        base = self.base.reshape(self.base.shape + (1,) * (MOST - self.base.ndim))
        return dataclasses.replace(self, base=base, terms=tuple(held))

    def map_leading(self, change: ArrayMap) -> Affine:
        """Return the expression with its leading axes changed by a function of arrays."""
        return dataclasses.replace(self, base=change(self.base))

    @property
    def array_shape(self) -> tuple[int, ...]:
        """The shape of `array`: of size 1 along axes that the expression does not depend on."""
        rank = self.base.ndim
        lead = np.broadcast_shapes(
            self.base.shape, *(v.value.shape[:rank] for v, _ in self.terms if v.axis is not None)
        )
        return lead + tuple(n if s else 1 for n, s in zip(self.shape, self.strides, strict=True))

    def array(self, xp: ModuleType) -> Array:
        """Return its values, leading axes before the block's; of size 1 along axes that it does not depend on.

        Args:
            xp: `numpy`, if the expression is concrete, or `jax.numpy`.
        """
        rank = self.base.ndim
        out = self.base.reshape(self.base.shape + (1,) * len(self.shape))
        if xp is not np:
            out = xp.asarray(out)
        for axis, (stride, size) in enumerate(zip(self.strides, self.shape, strict=True)):
            if stride and size > 1:
                wide = [1] * out.ndim
                wide[rank + axis] = size
                out = out + (xp.arange(size) * stride).reshape(wide)
        for variable, coefficient in self.terms:
            value = variable.value * coefficient
            out = out + (value if variable.axis is None else value.reshape(value.shape[:rank] + (1,) * len(self.shape)))
        return out


def constant(value: int) -> Affine:
    """Return an integer, the same for all programs, as an affine expression."""
    return Affine(np.full((1,) * leading(), int(value), np.int64))


def recognise(array: np.ndarray, shape: tuple[int, ...]) -> Affine | None:
    """Return the affine expression of an array of integers, or None where it is not affine along the block's axes.

    Args:
        array: leading axes before the block's.
        shape: the block's shape.
    """
    array = array.astype(np.int64)
    first = array[(slice(None),) * leading() + (0,) * len(shape)]
    strides = []
    for axis, size in enumerate(array.shape[leading() :]):
        index = [0] * array.ndim
        index[leading() + axis] = 1 if size > 1 else 0
        strides.append(int(array[tuple(index)]) - int(array[(0,) * array.ndim]))
    affine = Affine(first, shape, tuple(strides))
    return affine if np.array_equal(np.broadcast_to(affine.array(np), array.shape), array) else None


def _same_rank(a: Affine, b: Affine) -> tuple[Affine, Affine]:
    """Return both expressions with equally many axes; new axes are added in front, as in broadcasting."""
    assert a.base.ndim == b.base.ndim, "a value is used with other leading axes than it was made with"
    rank = max(len(a.shape), len(b.shape))

    def wide(affine: Affine) -> Affine:
        missing = rank - len(affine.shape)
        return affine.reshaped((1,) * missing + affine.shape, (0,) * missing + affine.strides)

    return wide(a), wide(b)
