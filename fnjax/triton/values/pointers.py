"""Pointers: the buffer, and the number of elements from its start."""

from __future__ import annotations

import dataclasses
import functools

import jax
import numpy as np

from fnjax.triton.values import types
from fnjax.triton.values.affine import Shape, constant
from fnjax.triton.values.arithmetic import add, as_tensor, cast, of_affine
from fnjax.triton.values.tensor import Index, Operand, Tensor, is_narrowed, needs_64_bits


@functools.partial(jax.tree_util.register_dataclass, data_fields=["offset"], meta_fields=["buffer", "element", "own"])
@dataclasses.dataclass(frozen=True, eq=False)
class Pointer:
    """Address in a buffer: the number of elements, of type `element`, from its start.

    `own` is the type of the array where its bits are read as another, else None.
    """

    buffer: int
    element: types.dtype
    offset: Tensor
    own: types.dtype | None = None

    dtype = property(lambda self: types.pointer_type(self.element))
    type = dtype

    @property
    def shape(self) -> Shape:
        """The shape of the block of addresses."""
        return self.offset.shape

    def __add__(self, other: Operand) -> Pointer:
        return self.at(add(self.offset, _offset(other)))

    __radd__ = __add__

    def __sub__(self, other: Operand) -> Pointer:
        return self.at(add(self.offset, -_offset(other)))

    def __getitem__(self, index: Index) -> Pointer:
        return self.at(self.offset[index])

    def at(self, offset: Tensor) -> Pointer:
        """Return the pointer with another offset."""
        return dataclasses.replace(self, offset=offset)

    def to(self, kind: types.TypeLike, fp_downcast_rounding: object = None, bitcast: bool = False) -> Pointer:
        """Return the pointer as one to another type: loads and stores reinterpret the bits of the array.

        Raises:
            TypeError: `kind` is not a pointer's type, or memory cannot be read in it (`reinterpreted`).
        """
        kind = types.as_type(kind)
        if not isinstance(kind, types.pointer_type):
            raise TypeError(f"a pointer to {self.element} is not of type {kind}: arrays have no addresses in JAX")
        return self if kind.element_ty == self.element else reinterpreted(self, kind.element_ty)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["mask", "yes", "no"], meta_fields=[])
@dataclasses.dataclass(frozen=True, eq=False)
class SelectedPointer:
    """Selection between two pointers, possibly into different arrays: `yes` where `mask` holds, else `no`."""

    mask: Tensor
    yes: AnyPointer
    no: AnyPointer

    dtype = property(lambda self: self.yes.dtype)
    element = property(lambda self: self.yes.element)

    @property
    def shape(self) -> Shape:
        """The shape of the block of addresses."""
        return np.broadcast_shapes(self.yes.shape, self.no.shape)

    def to(self, kind: types.TypeLike, fp_downcast_rounding: object = None, bitcast: bool = False) -> SelectedPointer:
        """Return the selection with both pointers converted."""
        return SelectedPointer(self.mask, self.yes.to(kind), self.no.to(kind))

    def __add__(self, other: Operand) -> SelectedPointer:
        return SelectedPointer(self.mask, self.yes + other, self.no + other)

    __radd__ = __add__

    def __sub__(self, other: Operand) -> SelectedPointer:
        return SelectedPointer(self.mask, self.yes - other, self.no - other)

    def __getitem__(self, index: Index) -> SelectedPointer:
        return SelectedPointer(self.mask, self.yes[index], self.no[index])


AnyPointer = Pointer | SelectedPointer


def _offset(value: Operand | AnyPointer) -> Tensor:
    """Return the right operand of pointer arithmetic as int64; TypeError where it is a pointer or not an integer."""
    if isinstance(value, AnyPointer):
        raise TypeError("two pointers are added or subtracted")
    value = as_tensor(value)
    if not value.dtype.is_int():
        raise TypeError(f"a pointer moves by integers, not by {value.dtype}")
    return cast(value, types.int64)


def pointer_to(buffer: int, element: types.dtype) -> Pointer:
    """Return a pointer to the first element of a buffer."""
    return Pointer(buffer, element, of_affine(constant(0), types.int64))


def reinterpreted(pointer: Pointer, kind: types.dtype) -> Pointer:
    """Return a pointer that reads the bits of its array as elements of another type.

    Raises:
        TypeError: the types differ in width, and one has 64 bits that JAX leaves off, or has booleans.
    """
    own = pointer.own or pointer.element
    if kind == own:
        return Pointer(pointer.buffer, own, _in_units(pointer, own))
    if has_width(own, kind):
        return Pointer(pointer.buffer, kind, _in_units(pointer, kind), own)
    for each in (own, kind):
        if is_narrowed(each):
            raise needs_64_bits(f"a pointer to {own} as one to {kind}")
    if types.int1 in (own, kind):
        raise TypeError(f"a pointer to {own} cannot be read as one to {kind}: convert the array with .astype(...)")
    offset = _in_units(pointer, kind)
    # Addresses in other units are compared with nothing: they stay arrays, and memory is gathered.
    return Pointer(pointer.buffer, kind, Tensor(offset.array(), types.int64, offset.shape), own)


def has_width(a: types.dtype, b: types.dtype) -> bool:
    """Return True for two types of the same width."""
    return bool(a.itemsize == b.itemsize)


def _in_units(pointer: Pointer, kind: types.dtype) -> Tensor:
    """Return the offset of a pointer in elements of another type."""
    old, new = pointer.element.itemsize, kind.itemsize
    if old == new:
        return pointer.offset
    found: Tensor = pointer.offset * (old // new) if old > new else pointer.offset // (new // old)
    return found
