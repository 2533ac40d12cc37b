"""Whole numbers as affine forms: base[program] + a stride for each axis of the block + loop variables.

What addresses and masks are made of stays in this form as long as it can, so that a load can be a view (`_views`).
"""

import dataclasses
from typing import Any

import numpy as np

GRID = 3  # axes that a grid may have
LEAD = 6  # axes that come before those of the block: of the grid, some of them cut in two, and of loops


class Sym:
    """A number that a loop makes: first and last value, both taken.

    Attributes:
        axis: the leading axis along which it runs, where the turns of its loop are one; else None, and only the range
            of the number is known.
    """

    def __init__(self, value, low, high, axis=None):
        self.value, self.low, self.high, self.axis = value, low, high, axis

    @classmethod
    def along(cls, axis, size):
        """The numbers 0 to size - 1, side by side."""
        return cls(laid(np.arange(size, dtype=np.int64), axis), 0, size - 1, axis)


def laid(numbers, axis):
    """Numbers along a leading axis."""
    return numbers.reshape([len(numbers) if d == axis else 1 for d in range(LEAD)])


@dataclasses.dataclass(frozen=True)
class Form:
    """base (over the grid's axes, int64) + Σ strides[axis] · index + Σ coefficient · sym, over a block of `shape`."""

    base: np.ndarray
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    syms: tuple[tuple[Sym, int], ...] = ()

    def plus(self, other: "Form") -> "Form":
        """The sum; shapes are broadcast."""
        a, b = _same_rank(self, other)
        shape = np.broadcast_shapes(a.shape, b.shape)
        strides = tuple(s + t for s, t in zip(a.strides, b.strides, strict=True))
        syms = dict(a.syms)
        for sym, coefficient in b.syms:
            syms[sym] = syms.get(sym, 0) + coefficient
        return Form(a.base + b.base, shape, strides, tuple((s, c) for s, c in syms.items() if c))

    def times(self, other: "Form") -> "Form | None":
        """The product, where one factor is a number that strides and loop variables can be multiplied by."""
        a, b = _same_rank(self, other)
        if any(a.strides) or a.syms:
            a, b = b, a
        if any(a.strides) or a.syms:
            return None
        if not (any(b.strides) or b.syms):
            return Form(a.base * b.base, np.broadcast_shapes(a.shape, b.shape), a.strides)
        first = int(a.base.flat[0])
        if not (a.base == first).all():
            return None
        scaled = tuple((s, c * first) for s, c in b.syms if first)
        shape = np.broadcast_shapes(a.shape, b.shape)
        return Form(b.base * first, shape, tuple(s * first for s in b.strides), scaled)

    def negated(self) -> "Form":
        return Form(-self.base, self.shape, tuple(-s for s in self.strides), tuple((s, -c) for s, c in self.syms))

    def limits(self) -> tuple[int, int]:
        """The smallest and the largest number that it takes."""
        low, high = int(self.base.min()), int(self.base.max())
        spans = [(0, s * (n - 1)) for s, n in zip(self.strides, self.shape, strict=True)]
        spans += [(c * sym.low, c * sym.high) for sym, c in self.syms]
        return low + sum(min(s) for s in spans), high + sum(max(s) for s in spans)

    def reshaped(self, shape, strides) -> "Form":
        return dataclasses.replace(self, shape=tuple(shape), strides=tuple(strides))

    @property
    def concrete(self) -> bool:
        """Whether its numbers are known."""
        return all(sym.axis is not None for sym, _ in self.syms)

    @property
    def moving(self) -> tuple[tuple[Sym, int], ...]:
        """The loop variables that are known by their range only."""
        return tuple((sym, c) for sym, c in self.syms if sym.axis is None)

    def untraced(self) -> "Form":
        """The same with nothing of what is being traced: what moves keeps its range."""
        held = ((s if s.axis is not None else Sym(None, s.low, s.high), c) for s, c in self.syms)
        return dataclasses.replace(self, syms=tuple(held))

    @property
    def spread(self) -> tuple[int, ...]:
        """The shape of the array of its numbers; of size 1 along what it does not depend on."""
        lead = np.broadcast_shapes(self.base.shape, *(sym.value.shape for sym, _ in self.syms if sym.axis is not None))
        return lead + tuple(n if s else 1 for n, s in zip(self.shape, self.strides, strict=True))

    def array(self, xp: Any) -> Any:
        """Its numbers, grid before block; of size 1 along what it does not depend on."""
        out = self.base.reshape(self.base.shape + (1,) * len(self.shape))
        if xp is not np:
            out = xp.asarray(out)
        for axis, (stride, size) in enumerate(zip(self.strides, self.shape, strict=True)):
            if stride and size > 1:
                wide = [1] * out.ndim
                wide[LEAD + axis] = size
                out = out + (xp.arange(size) * stride).reshape(wide)
        for sym, coefficient in self.syms:
            value = sym.value * coefficient
            out = out + (value if sym.axis is None else value.reshape(value.shape + (1,) * len(self.shape)))
        return out


def number(value: Any) -> Form:
    """A number that is the same for all programs."""
    return Form(np.full((1,) * LEAD, int(value), np.int64))


def recognise(array: np.ndarray, shape: tuple[int, ...]) -> Form | None:
    """The form of an array of whole numbers (grid before block), where it has one."""
    array = array.astype(np.int64)
    first = array[(slice(None),) * LEAD + (0,) * len(shape)]
    strides = []
    for axis, size in enumerate(array.shape[LEAD:]):
        index = [0] * array.ndim
        index[LEAD + axis] = 1 if size > 1 else 0
        strides.append(int(array[tuple(index)]) - int(array[(0,) * array.ndim]))
    form = Form(first, shape, tuple(strides))
    return form if np.array_equal(np.broadcast_to(form.array(np), array.shape), array) else None


def _same_rank(a, b):
    """Both with as many axes, new ones in front, as broadcasting has it."""
    rank = max(len(a.shape), len(b.shape))

    def wide(form):
        missing = rank - len(form.shape)
        return form.reshaped((1,) * missing + form.shape, (0,) * missing + form.strides)

    return wide(a), wide(b)
