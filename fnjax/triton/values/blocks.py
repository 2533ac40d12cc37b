"""Block pointers and tensor descriptors: blocks of an array, given by base, shape, strides and offsets."""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, SupportsIndex

import jax
import numpy as np

from fnjax.triton.values import memory, types
from fnjax.triton.values.affine import Affine, ArrayMap, leading
from fnjax.triton.values.arithmetic import as_tensor, broadcast, cast, logical_and, of_affine
from fnjax.triton.values.atomics import update
from fnjax.triton.values.pointers import AnyPointer
from fnjax.triton.values.tensor import Operand, Tensor

Offsets = Sequence[Operand]  # one for each axis of the array
Block = Sequence[SupportsIndex]
CheckedAxes = Sequence[SupportsIndex] | SupportsIndex | types.constexpr | None  # `boundary_check`


class _Fixed(tuple[Tensor, ...]):
    """Sizes or strides of a block pointer, which a loop must not change; equal if they are known to be the same."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Fixed) and len(self) == len(other) and all(map(_is_same, self, other))

    def __hash__(self) -> int:
        return len(self)


def _is_same(a: Tensor, b: Tensor) -> bool:
    return a is b or (a.known and b.known and np.array_equal(a.data, b.data))


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass(frozen=True, eq=False)
class BlockPointer:
    """Pointer to a block of an array with any number of axes (`tl.make_block_ptr`): a pytree of base and offsets."""

    base: AnyPointer
    sizes: tuple[Tensor, ...]
    strides: tuple[Tensor, ...]
    offsets: tuple[Tensor, ...]
    block_shape: tuple[int, ...]
    padding: str = "zero"  # "zero" or "nan": what a descriptor loads outside of the array

    dtype = property(lambda self: types.pointer_type(self.base.element))
    type = dtype
    element = property(lambda self: self.base.element)
    shape = property(lambda self: self.sizes)

    def tree_flatten(self) -> tuple[Any, Any]:
        """Return what may change between the iterations of a loop, and what may not."""
        return (self.base, self.offsets), (_Fixed(self.sizes), _Fixed(self.strides), self.block_shape, self.padding)

    @classmethod
    def tree_unflatten(cls, fixed: Any, parts: Any) -> BlockPointer:
        """Return the block pointer that `tree_flatten` has taken apart."""
        sizes, strides, block_shape, padding = fixed
        return cls(parts[0], sizes, strides, parts[1], block_shape, padding)

    def map_leading(self, change: ArrayMap) -> BlockPointer:
        """Return the block pointer with its leading axes changed by a function of arrays."""
        sizes, strides, offsets = (
            tuple(t.map_leading(change) for t in each) for each in (self.sizes, self.strides, self.offsets)
        )
        base = jax.tree.map(lambda tensor: tensor.map_leading(change), self.base)
        return dataclasses.replace(self, base=base, sizes=sizes, strides=strides, offsets=offsets)

    def select(self, other: BlockPointer, choose: Callable[[Any, Any], Any]) -> BlockPointer:
        """Return a block pointer whose base and offsets `choose` selects from those of two."""
        offsets = tuple(map(choose, self.offsets, other.offsets))
        return dataclasses.replace(self, base=choose(self.base, other.base), offsets=offsets)

    def advance(self, offsets: Offsets) -> BlockPointer:
        """Return the block pointer with `offsets` added to its own."""
        return advance(self, offsets)


class Descriptor(BlockPointer):
    """Tensor descriptor, whose blocks are loaded and stored by their offsets: `tl.tensor_descriptor`."""

    dtype = property(lambda self: self.base.element)

    def load(self, offsets: Offsets) -> Tensor:
        """Return the block at these offsets; elements outside of the array are zero or NaN."""
        return load_block(self._at(offsets), range(len(self.block_shape)), self.padding)

    def store(self, offsets: Offsets, value: Operand) -> None:
        """Store a block at these offsets; elements outside of the array are dropped."""
        store_block(self._at(offsets), value, range(len(self.block_shape)))

    def gather(self, x_offsets: Tensor, y_offset: Operand) -> Tensor:
        """Return one row of the array for each offset, from the column `y_offset` on; outside it is the padding."""
        pointer, mask = self._rows(x_offsets, y_offset)
        return memory.load(pointer, mask, float("nan") if self.padding == "nan" else 0)

    def scatter(self, value: Operand, x_offsets: Tensor, y_offset: Operand) -> None:
        """Store one row of a block for each offset, from the column `y_offset` on; what is outside is dropped."""
        pointer, mask = self._rows(x_offsets, y_offset)
        memory.store(pointer, value, mask)

    def _rows(self, x_offsets: Tensor, y_offset: Operand) -> tuple[AnyPointer, Tensor]:
        """Return the pointer to rows at any offsets, and the mask of the elements inside of the array.

        Raises:
            TypeError: the descriptor's blocks are not single rows.
        """
        if len(self.block_shape) != 2 or self.block_shape[0] != 1:
            raise TypeError(f"gather and scatter take a descriptor of blocks (1, n), not {self.block_shape}")
        block = self._at([0, y_offset])
        columns, rows = _indices(block, 1), as_tensor(x_offsets)[:, None]
        inside = functools.reduce(logical_and, (rows >= 0, rows < self.sizes[0], columns >= 0, columns < self.sizes[1]))
        return self.base + _as_offset(rows) * self.strides[0] + columns * self.strides[1], inside

    def _at(self, offsets: Offsets) -> Descriptor:
        """Return the block pointer at these offsets."""
        return dataclasses.replace(self, offsets=tuple(map(_as_offset, offsets)))


def _atomic(name: str) -> Callable[[Descriptor, Offsets, Operand], None]:
    """Return the method that applies an atomic to a block of memory; elements outside of the array are dropped."""

    def operate(self: Descriptor, offsets: Offsets, value: Operand) -> None:
        pointer, mask = _address(self._at(offsets), range(len(self.block_shape)))
        update(name, pointer, broadcast(value, self.block_shape), mask, "relaxed")

    return operate


for _name in ("add", "max", "min", "and", "or", "xor"):
    setattr(Descriptor, f"atomic_{_name}", _atomic(_name))


def _as_offset(value: Operand) -> Tensor:
    return cast(as_tensor(value), types.int64)


def make_block_ptr(
    base: AnyPointer, shape: Offsets, strides: Offsets, offsets: Offsets, block_shape: Block, order: object
) -> BlockPointer:
    """Return a pointer to a block of an array.

    Raises:
        TypeError: `base` is not a pointer.
        ValueError: the other arguments are not sequences of one length.
    """
    if not isinstance(base, AnyPointer):
        raise TypeError(f"tl.make_block_ptr takes a pointer as its base, not {base!r}")
    if not all(isinstance(part, tuple | list) for part in (shape, strides, offsets, block_shape)):
        raise ValueError("shape, strides, offsets and block_shape of tl.make_block_ptr are lists or tuples")
    sizes, steps, starts = (tuple(map(_as_offset, part)) for part in (shape, strides, offsets))
    blocks = tuple(operator.index(getattr(n, "value", n)) for n in block_shape)
    if len({len(blocks), len(sizes), len(steps), len(starts)}) != 1:
        raise ValueError("shape, strides, offsets and block_shape of tl.make_block_ptr differ in length")
    return BlockPointer(base, sizes, steps, starts, blocks)


def make_tensor_descriptor(
    base: AnyPointer,
    shape: Offsets,
    strides: Offsets,
    block_shape: Block,
    padding_option: str | types.constexpr = "zero",
) -> Descriptor:
    """Return a descriptor of an array that is loaded and stored in blocks.

    Raises:
        TypeError: `base` is not a pointer.
        ValueError: the lengths of the other arguments differ.
    """
    block = make_block_ptr(base, shape, strides, [0] * len(block_shape), block_shape, None)
    padding: Any = getattr(padding_option, "value", padding_option)
    return Descriptor(block.base, block.sizes, block.strides, block.offsets, block.block_shape, padding)


def load_tensor_descriptor(desc: Descriptor, offsets: Offsets) -> Tensor:
    """Return the block of a descriptor at these offsets."""
    return desc.load(offsets)


def store_tensor_descriptor(desc: Descriptor, offsets: Offsets, value: Operand) -> None:
    """Store a block through a descriptor at these offsets."""
    desc.store(offsets, value)


def advance(base: BlockPointer, offsets: Offsets) -> BlockPointer:
    """Return a block pointer with `offsets` added to its own."""
    moved = tuple(a + _as_offset(b) for a, b in zip(base.offsets, offsets, strict=True))
    return dataclasses.replace(base, offsets=moved)


def _indices(block: BlockPointer, axis: int) -> Tensor:
    """Return the indices of a block along one axis of the array, as a tensor of integers."""
    rank = len(block.block_shape)
    size = block.block_shape[axis]
    strides = [1 if d == axis and size > 1 else 0 for d in range(rank)]
    shape = [size if d == axis else 1 for d in range(rank)]
    zero = np.zeros((1,) * leading(), np.int64)
    return block.offsets[axis] + of_affine(Affine(zero, tuple(shape), tuple(strides)), types.int64)


def _address(block: BlockPointer, checked: Iterable[int]) -> tuple[AnyPointer, Tensor | None]:
    """Return the pointer to a block's elements, and the mask of those inside of the array along the `checked` axes."""
    rank = len(block.block_shape)
    pointer, mask = block.base, None
    for axis in range(rank):
        index = _indices(block, axis)
        pointer = pointer + index * block.strides[axis]
        if axis in checked:
            inside = logical_and(index >= 0, index < block.sizes[axis])
            mask = inside if mask is None else logical_and(mask, inside)
    return pointer, None if mask is None else broadcast(mask, block.block_shape)


def _checked(boundary_check: CheckedAxes) -> list[int]:
    """Return the axes of a `boundary_check` argument as a list of integers."""
    axes: Any = getattr(boundary_check, "value", boundary_check) or ()
    return [operator.index(getattr(n, "value", n)) for n in ((axes,) if isinstance(axes, int) else axes)]


def load_block(block: BlockPointer, boundary_check: CheckedAxes, padding_option: object) -> Tensor:
    """Return the elements of a block; outside of the array, along the checked axes, they are zero or NaN."""
    pointer, mask = _address(block, _checked(boundary_check))
    other = float("nan") if padding_option == "nan" else 0
    return memory.load(pointer, mask, other if mask is not None else None)


def store_block(block: BlockPointer, value: Operand, boundary_check: CheckedAxes) -> None:
    """Store a block; elements outside of the array, along the checked axes, are dropped."""
    pointer, mask = _address(block, _checked(boundary_check))
    memory.store(pointer, broadcast(value, block.block_shape), mask)
