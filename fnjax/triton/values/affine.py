"""Affine expressions for integers: a constant for each program, a stride for each axis of the block, loop variables.

Addresses and masks stay affine expressions as long as possible, because an affine address can become a view of memory
(reshape, slice, transpose: `views`) instead of a gather.
"""

import dataclasses
from typing import Any

import numpy as np

GRID = 3  # axes that a grid may have
LEAD = 6  # leading axes of every value, before those of the block: axes of the grid (some of them split) and of loops


class Sym:
    """Loop variable, with its first and last value, both included.

    Attributes:
        value: its value: a traced scalar, or an array along `axis`.
        low: its smallest value.
        high: its largest value.
        axis: the leading axis that its loop is vectorised along; None where the loop is traced sequentially and only
            the range of the variable is known.
    """

    def __init__(self, value, low, high, axis=None):
        self.value, self.low, self.high, self.axis = value, low, high, axis

    @classmethod
    def along(cls, axis, size):
        """Return the variable of a loop with `size` iterations that is vectorised along a leading axis."""
        return cls(laid(np.arange(size, dtype=np.int64), axis), 0, size - 1, axis)


def laid(numbers, axis):
    """Return a vector reshaped to run along one leading axis, with size 1 along the others."""
    return numbers.reshape([len(numbers) if d == axis else 1 for d in range(LEAD)])


@dataclasses.dataclass(frozen=True)
class Form:
    """Affine expression over programs, block indices and loop variables.

    Its value is base[program] + Σ strides[d] · index[d] + Σ coefficient · variable, for each index of a block.

    Attributes:
        base: int64 array over the leading axes, of size 1 along those that it does not depend on.
        shape: the block's.
        strides: one for each axis of the block.
        syms: pairs of loop variable and coefficient.
    """

    base: np.ndarray
    shape: tuple[int, ...] = ()
    strides: tuple[int, ...] = ()
    syms: tuple[tuple[Sym, int], ...] = ()

    def plus(self, other: "Form") -> "Form":
        """Return the sum of two expressions; their shapes are broadcast."""
        a, b = _same_rank(self, other)
        shape = np.broadcast_shapes(a.shape, b.shape)
        strides = tuple(s + t for s, t in zip(a.strides, b.strides, strict=True))
        syms = dict(a.syms)
        for sym, coefficient in b.syms:
            syms[sym] = syms.get(sym, 0) + coefficient
        return Form(a.base + b.base, shape, strides, tuple((s, c) for s, c in syms.items() if c))

    def times(self, other: "Form") -> "Form | None":
        """Return the product of two expressions, or None where it is not affine.

        One factor must be free of block indices and loop variables, and a single number where the other one has any.
        """
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
        """Return the expression times -1."""
        return Form(-self.base, self.shape, tuple(-s for s in self.strides), tuple((s, -c) for s, c in self.syms))

    def limits(self) -> tuple[int, int]:
        """Return bounds of its value over all programs, indices and iterations, both included."""
        low, high = int(self.base.min()), int(self.base.max())
        spans = [(0, s * (n - 1)) for s, n in zip(self.strides, self.shape, strict=True)]
        spans += [(c * sym.low, c * sym.high) for sym, c in self.syms]
        return low + sum(min(s) for s in spans), high + sum(max(s) for s in spans)

    def reshaped(self, shape, strides) -> "Form":
        """Return the same expression for a block of another shape, with new strides."""
        return dataclasses.replace(self, shape=tuple(shape), strides=tuple(strides))

    @property
    def concrete(self) -> bool:
        """Return True where all values are known: no loop variable is traced."""
        return all(sym.axis is not None for sym, _ in self.syms)

    @property
    def moving(self) -> tuple[tuple[Sym, int], ...]:
        """The loop variables of sequentially traced loops, with their coefficients."""
        return tuple((sym, c) for sym, c in self.syms if sym.axis is None)

    def untraced(self) -> "Form":
        """Return a copy that holds no tracers: variables of traced loops keep only their range."""
        held = ((s if s.axis is not None else Sym(None, s.low, s.high), c) for s, c in self.syms)
        return dataclasses.replace(self, syms=tuple(held))

    @property
    def spread(self) -> tuple[int, ...]:
        """The shape of `array`: of size 1 along axes that the expression does not depend on."""
        lead = np.broadcast_shapes(self.base.shape, *(sym.value.shape for sym, _ in self.syms if sym.axis is not None))
        return lead + tuple(n if s else 1 for n, s in zip(self.shape, self.strides, strict=True))

    def array(self, xp: Any) -> Any:
        """Return its values, leading axes before the block's; of size 1 along axes that it does not depend on.

        Args:
            xp: `numpy`, if the expression is concrete, or `jax.numpy`.
        """
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
    """Return an integer, the same for all programs, as an affine expression."""
    return Form(np.full((1,) * LEAD, int(value), np.int64))


def recognise(array: np.ndarray, shape: tuple[int, ...]) -> Form | None:
    """Return the affine expression of an array of integers, or None where it is not affine along the block's axes.

    Args:
        array: leading axes before the block's.
        shape: the block's shape.
    """
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
    """Return both expressions with equally many axes; new axes are added in front, as in broadcasting."""
    rank = max(len(a.shape), len(b.shape))

    def wide(form):
        missing = rank - len(form.shape)
        return form.reshaped((1,) * missing + form.shape, (0,) * missing + form.strides)

    return wide(a), wide(b)
