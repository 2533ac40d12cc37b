"""Values of a kernel: arrays with leading axes (grid, vectorised loops) before the axes of the block.

Leading axes. All values in use at one moment have `leading()` of them, of the sizes `State.lead`, or of size 1 where
they do not depend on the axis: first those of the grid, its last axis first (an axis that is split has several), then
one for each vectorised loop around, the outermost first. `State.vectorizing` adds the axis of a loop: what was made
before it gets the axis by `VectorizedLoop.with_axis`, and what is used after it loses it by `without_axis`. A
loop that is traced sequentially has no axis; its `LoopVariable` is a term of affine expressions.

A tensor has one of four representations, and `data` returns it as an array:

- an array (`_data`): NumPy's if its values are known while tracing, else JAX's. Its block may have fewer axes than
  `shape`: `aligned` inserts the missing ones in front;
- an affine expression (`affine`), of integers: `_data` is None, or the same values as a NumPy array;
- conditions (`conditions`, `rest`), of a mask: it holds where all these affine expressions are at least 0 and the mask
  `rest`, if there is one, holds. `_data` as before. They become an array where an array is needed;
- what a subclass has instead: two parts (`Concatenated`), a mask that clears it (`Guarded`), terms of a sum over a
  loop (`vectorize.Sum`), or nothing (`atomics.UnusedOldValue`). `_data`, `affine` and `conditions` are then None, or
  raise.

An array may say in addition how it was made: `factors` of a matrix product, `row` times a length plus an expression.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Callable, Sequence
from types import EllipsisType
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

from fnjax.triton.values import types
from fnjax.triton.values.affine import Affine, Array, ArrayMap, OneArray, Shape, constant, leading
from fnjax.triton.values.state import check_size

KNOWN_LIMIT = 1 << 16  # known values that are not affine stay NumPy arrays up to this many elements


def canonical(kind: types.dtype) -> np.dtype[Any]:
    """Return the NumPy dtype that arrays of a type have: 64 bits only where JAX allows them."""
    return jax.dtypes.canonicalize_dtype(kind.array)


def is_narrowed(kind: types.dtype) -> bool:
    """Return True for 64-bit integers where JAX has only 32 bits."""
    return kind.kind in "iu" and canonical(kind).itemsize < kind.array.itemsize


def for_jax(data: Array, kind: types.dtype) -> jax.Array:
    """Return `data` as a JAX array of a type's dtype.

    Raises:
        TypeError: a known value does not fit into the 32 bits that JAX has.
    """
    own = canonical(kind)
    if isinstance(data, np.ndarray) and own.itemsize < kind.array.itemsize and data.size:
        if data.dtype.kind in "iu":
            _refuse_wide(data.min(), data.max(), kind)
        with np.errstate(all="ignore"):
            lost = np.isfinite(data) & (data != 0) & ~(np.isfinite(short := data.astype(own)) & (short != 0))
        if lost.any():
            raise needs_64_bits(f"the number {data[lost][0]} of {kind}")
    return jnp.asarray(data).astype(own)


def _refuse_wide(low: int | np.integer, high: int | np.integer, kind: types.dtype) -> None:
    """Raise TypeError where a range of integers does not fit into the 32 bits that JAX has."""
    limits = np.iinfo(canonical(kind))
    for number in (low, high):
        if not limits.min <= number <= limits.max:
            raise needs_64_bits(f"the number {number} of {kind}")


def needs_64_bits(what: object) -> TypeError:
    """Return the error for `what`, which 32 bits would compute wrongly."""
    return TypeError(f"{what} takes 64 bits, which JAX leaves off: jax.config.update('jax_enable_x64', True)")


Conditions = tuple[Affine, ...]
Index = slice | tuple[slice | None, ...] | None  # of a block: all of an axis, or a new one


class Tensor:
    """Value of a kernel, for all programs at once, in one of the representations that the module's docstring lists.

    Attributes:
        shape: the block's shape.
        affine: its affine expression, or None.
        conditions: of a mask: affine expressions that are at least 0 where it holds; else None.
        rest: another mask that must hold together with `conditions`, or None.
        factors: of a matrix product: operands and result type, so that a vectorised loop can contract over its axis.
        row: of integers that are not known: a tensor, a number and an affine expression, tensor · number + expression.
    """

    factors: tuple[jax.Array, jax.Array, np.dtype[Any]] | None = None
    row: tuple[Tensor, int, Affine] | None = None
    if TYPE_CHECKING:  # `arithmetic` installs the operators, and `language` the methods

        def _operate(self, other: Operand) -> Tensor: ...
        def __getattr__(self, name: str) -> Any: ...
        def __neg__(self) -> Tensor: ...

        __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _operate
        __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = __lshift__ = __rshift__ = _operate
        __and__ = __rand__ = __or__ = __ror__ = __xor__ = __rxor__ = __lt__ = __le__ = __gt__ = __ge__ = _operate

    def __init__(
        self,
        data: Array | None,
        dtype: types.dtype,
        shape: Sequence[int],
        affine: Affine | None = None,
        conditions: Conditions | None = None,
        rest: Tensor | None = None,
    ) -> None:
        self._data, self._type, self.shape = data, dtype, tuple(shape)
        self.affine, self.conditions, self.rest = affine, conditions, rest

    @property
    def dtype(self) -> types.dtype:
        """The type of the elements."""
        return self._type

    @property
    def ndim(self) -> int:
        """The number of axes of the block."""
        return len(self.shape)

    type = property(lambda self: self._type)

    @property
    def numel(self) -> int:
        """The number of elements of the block."""
        return int(np.prod(self.shape, dtype=int))

    @property
    def data(self) -> Array:
        """The array, NumPy's or JAX's: leading axes before the block's, of size 1 where it does not vary.

        Raises:
            NotVectorizable: a vectorised loop makes it too large (`state.check_size`).
        """
        if self._data is not None:
            check_size(self._data)
            return self._data
        if self.affine is not None:
            xp = np if is_small(self.affine) else jnp
            if xp is jnp and not self.affine.terms and canonical(self._type).itemsize < self._type.array.itemsize:
                _refuse_wide(*self.affine.limits(), self._type)
            found = self.affine.array(xp).astype(self._type.array if xp is np else canonical(self._type))
        else:
            found = np.ones((1,) * leading(), bool) if self.rest is None else self.rest.data
            for affine in self.conditions or ():
                met = affine.array(np if is_small(affine) else jnp) >= 0
                found = pair(operator.and_, found, met)
        if isinstance(found, np.ndarray):  # a tracer is not cached: it would leak out of the loop that is being traced
            self._data = found
        return found

    @property
    def known(self) -> bool:
        """Return True where the values are known while tracing: they depend on program numbers alone."""
        if self._data is not None:
            return isinstance(self._data, np.ndarray)
        if self.affine is not None:
            return is_small(self.affine)
        return (self.rest is None or self.rest.known) and all(map(is_small, self.conditions or ()))

    def uniform(self) -> Any:
        """Return the Python scalar of a known scalar that is the same in all programs; else None."""
        if self.shape == () and self.known:
            data = np.asarray(self.data)
            if (data == data.flat[0]).all() or data.size == 1:
                return data.flat[0].item()
        return None

    def array(self) -> jax.Array:
        """Return the values as a JAX array of the type's dtype."""
        return for_jax(self.data, self._type)

    def filled(self) -> jax.Array:
        """Return the array with the block's axes broadcast to their full size."""
        data = aligned(self.array(), self.ndim)
        return jnp.broadcast_to(data, data.shape[: leading()] + self.shape)

    def __bool__(self) -> bool:
        value = self.uniform()
        if value is None:
            raise TypeError("a value that differs between programs, or is traced, has no truth value in plain Python")
        return bool(value)

    def __index__(self) -> int:
        value = self.uniform()
        if value is None or not self._type.is_int():
            raise TypeError("a number that is known when the kernel is traced is needed here; make it a tl.constexpr")
        return int(value)

    __int__ = __index__

    def __float__(self) -> float:
        value = self.uniform()
        if value is None:
            raise TypeError("a number that is known when the kernel is traced is needed here; make it a tl.constexpr")
        return float(value)

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"tensor<{'x'.join(map(str, (*self.shape, self._type)))}>"

    def __getitem__(self, index: Index) -> Tensor:
        index = index if isinstance(index, tuple) else (index,)
        index = (*index, *[slice(None)] * (len(self.shape) - sum(item is not None for item in index)))
        shape: list[int] = []
        strides: list[int] = []
        axes: list[slice | None] = [slice(None)] * leading()
        at = 0
        for item in index:
            if item is None:
                shape.append(1)
                strides.append(0)
                axes.append(None)
            elif item == slice(None) and at < len(self.shape):
                shape.append(self.shape[at])
                strides.append(at)
                axes.append(slice(None))
                at += 1
            elif item != slice(None):  # a colon beyond the last axis does nothing, as in `pid[:, None]` of a scalar
                raise TypeError("blocks are indexed with : and None only (tl.gather takes elements)")

        def moved(affine: Affine) -> Affine:
            return affine.reshaped(
                shape, [0 if a is None else affine.strides[s] for a, s in zip(axes[leading() :], strides, strict=True)]
            )

        return self.rearranged(shape, moved, lambda data: data[tuple(axes)])

    def rearranged(
        self,
        shape: Sequence[int],
        on_affine: Callable[[Affine], Affine] | None,
        on_data: Callable[[Array], Array],
    ) -> Tensor:
        """Return the elements in other positions of a block (transposed, indexed, reshaped).

        Args:
            shape: the new shape of the block.
            on_affine: maps an affine expression to the rearranged one; None where that is impossible.
            on_data: maps an array to the rearranged one.
        """
        if self.affine is not None and on_affine is not None:
            return Tensor(None, self._type, shape, affine=on_affine(self.affine))
        if self.conditions is not None and on_affine is not None:
            wide = [as_block(f, self.shape) for f in self.conditions]
            rest = None if self.rest is None else self.rest.rearranged(shape, on_affine, on_data)
            return Tensor(None, self._type, shape, conditions=tuple(on_affine(f) for f in wide), rest=rest)
        return Tensor(on_data(aligned(self.data, len(self.shape))), self._type, shape)

    def map_leading(self, change: ArrayMap) -> Tensor:
        """Return the tensor with its leading axes changed by a function of arrays."""
        if self.affine is not None:
            return Tensor(None, self._type, self.shape, affine=self.affine.map_leading(change))
        if self.conditions is not None:
            rest = None if self.rest is None else self.rest.map_leading(change)
            return Tensor(
                None,
                self._type,
                self.shape,
                conditions=tuple(c.map_leading(change) for c in self.conditions),
                rest=rest,
            )
        found = Tensor(change(self.data), self._type, self.shape)
        if self.factors is not None:
            x, y, kind = self.factors
            found.factors = change(x), change(y), kind
        if self.row is not None:
            found.row = self.row[0].map_leading(change), self.row[1], self.row[2].map_leading(change)
        return found


Operand = Tensor | types.Number | types.constexpr  # of arithmetic; anything else is a TypeError


class Concatenated(Tensor):
    """Two tensors one after the other along an axis of the block: lanes that are in an array, and those after its end.

    Elementwise operations apply to each (`by_parts`). Only what needs the whole block concatenates them: a store drops
    the lanes after the end, which are then not computed, and rows of 1800 elements do not become rows of 2048.

    Attributes:
        parts: the two tensors.
        axis: the axis, counted from the last one, which is -1.
    """

    known = property(lambda self: False)

    def __init__(self, parts: Sequence[Tensor], axis: int) -> None:
        self.parts, self.axis, self.sizes = parts, axis, tuple(part.shape[axis] for part in parts)
        shape = list(parts[0].shape)
        shape[axis] = sum(self.sizes)
        super().__init__(None, parts[0].dtype, tuple(shape))

    @property
    def data(self) -> jax.Array:
        """The array of the whole block."""
        arrays = [aligned(part.array(), self.ndim) for part in self.parts]
        common = list(np.broadcast_shapes(*(jax.lax.index_in_dim(a, 0, self.axis).shape for a in arrays)))
        sizes = [[size if d == len(common) + self.axis else n for d, n in enumerate(common)] for size in self.sizes]
        return jnp.concatenate([jnp.broadcast_to(a, size) for a, size in zip(arrays, sizes, strict=True)], self.axis)

    def map_leading(self, change: ArrayMap) -> Tensor:
        """Return the tensor with other leading axes, as `Tensor.map_leading` does."""
        return Concatenated([part.map_leading(change) for part in self.parts], self.axis)


class Guarded(Tensor):
    """Tensor that is zero in programs where a mask does not hold, and does not depend on the program in the others.

    A matrix product of it is one with the tensor, whose result is masked: the tensor is not repeated by program.

    Attributes:
        inner: the tensor where the mask holds.
        mask: the mask, a scalar of each program.
        select: returns `inner` where the mask holds, else zero.
    """

    known = property(lambda self: False)
    data = property(lambda self: self.select(self.mask, self.inner).data)

    def __init__(self, inner: Tensor, mask: Tensor, select: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__(None, inner.dtype, inner.shape)
        self.inner, self.mask, self.select = inner, mask, select

    def rearranged(
        self,
        shape: Sequence[int],
        on_affine: Callable[[Affine], Affine] | None,
        on_data: Callable[[Array], Array],
    ) -> Tensor:
        """Return the elements in other positions of a block, as `Tensor.rearranged` does."""
        return Guarded(self.inner.rearranged(shape, on_affine, on_data), self.mask, self.select)

    def map_leading(self, change: ArrayMap) -> Tensor:
        """Return the tensor with other leading axes, as `Tensor.map_leading` does."""
        return Guarded(self.inner.map_leading(change), self.mask.map_leading(change), self.select)


def by_parts(function: Callable[..., Tensor], *tensors: Tensor) -> Tensor | None:
    """Return `function` of tensors, elementwise, for each part of a block; None where they have no common parts."""
    divided = [t for t in tensors if isinstance(t, Concatenated)]
    if not divided or len({(t.axis, t.sizes) for t in divided}) > 1:
        return None
    axis, sizes = divided[0].axis, divided[0].sizes
    return Concatenated([function(*(part_of(t, axis, sizes, i) for t in tensors)) for i in (0, 1)], axis)


def row_of(name: str, a: Tensor, b: Tensor) -> tuple[Tensor, int, Affine] | None:
    """Return `Tensor.row` of the sum ("add") or product ("multiply") of two integers, or None."""
    for x, y in ((a, b), (b, a)):
        if name == "add" and x.row is not None and y.affine is not None:
            row, length, rest = x.row
            return row, length, rest.plus(y.affine)
        factor = y.uniform() if name == "multiply" and not x.known else None
        if factor is not None and factor > 0:
            return x, factor, constant(0)
    return None


def part_of(tensor: Tensor, axis: int, sizes: Sequence[int], position: int) -> Tensor:
    """Return the first or second part (`position`) of a tensor that is divided along an axis into parts of `sizes`."""
    if isinstance(tensor, Concatenated) and (tensor.axis, tensor.sizes) == (axis, sizes):
        return tensor.parts[position]
    if tensor.ndim < -axis or tensor.shape[axis] == 1:
        return tensor
    first, size = position * sizes[0], sizes[position]
    shape = [size if d == tensor.ndim + axis else n for d, n in enumerate(tensor.shape)]
    lanes: tuple[EllipsisType | slice, ...] = (..., slice(first, first + size), *[slice(None)] * (-axis - 1))

    def moved(affine: Affine) -> Affine:
        wide = affine.reshaped(shape, affine.strides)
        return dataclasses.replace(wide, base=wide.base + first * wide.strides[axis])

    return tensor.rearranged(shape, moved, lambda data: data[lanes] if data.shape[axis] > 1 else data)


def with_conditions(mask: Tensor | None, conditions: Conditions) -> Tensor | None:
    """Return a mask with only these of its conditions, the others hold anyway; masks without conditions as they are."""
    if mask is None or mask.conditions is None:
        return mask
    return Tensor(None, mask.dtype, mask.shape, conditions=conditions, rest=mask.rest) if conditions else mask.rest


def as_block(affine: Affine, shape: Shape) -> Affine:
    """Return an affine expression broadcast to a block's shape: missing axes in front, with stride 0."""
    missing = len(shape) - len(affine.shape)
    return affine.reshaped(shape, (0,) * missing + affine.strides)


def is_small(affine: Affine) -> bool:
    """Return True for a concrete affine expression of at most `KNOWN_LIMIT` distinct elements."""
    return affine.concrete and math.prod(affine.array_shape) <= KNOWN_LIMIT


def aligned(data: OneArray, rank: int) -> OneArray:
    """Return an array whose block has `rank` axes: missing ones are inserted before those of its block."""
    missing = leading() + rank - data.ndim
    return data.reshape(data.shape[: leading()] + (1,) * missing + data.shape[leading() :]) if missing else data


def pair(op: Callable[[Array, Array], Array], a: Array, b: Array) -> Array:
    """Return `op(a, b)` of two arrays, whose blocks are aligned first."""
    rank = max(a.ndim, b.ndim) - leading()
    return op(aligned(a, rank), aligned(b, rank))
