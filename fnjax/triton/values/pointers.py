"""Pointers: the buffer, and the number of elements from its start."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any, Self

import jax
import numpy as np

from fnjax.triton.values import types
from fnjax.triton.values.affine import Shape, constant
from fnjax.triton.values.arithmetic import (
    add,
    as_mask,
    as_tensor,
    broadcast,
    cast,
    logical_and,
    logical_not,
    of_affine,
    where,
)
from fnjax.triton.values.tensor import Index, Operand, Tensor, is_narrowed, needs_64_bits


class BasePointer:
    """Address in one array, or a selection of such: a pytree of offsets and masks of one shape."""

    dtype = property(lambda self: types.pointer_type(self.element))
    type = dtype
    if TYPE_CHECKING:  # `language` installs the methods

        def __getattr__(self, name: str) -> Any: ...

    def map(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return the pointer with its offsets and masks changed by a function of blocks, such as a transposition."""
        found: Self = jax.tree.map(change, self)
        return found

    def moved(self, offset: Tensor) -> AnyPointer:
        """Return the pointer moved by a number of elements."""
        raise NotImplementedError

    def __add__(self, other: Operand) -> AnyPointer:
        return self.moved(_offset(other))

    __radd__ = __add__

    def __sub__(self, other: Operand) -> AnyPointer:
        return self.moved(-_offset(other))

    def __getitem__(self, index: Index) -> Self:
        return self.map(lambda tensor: tensor[index])

    def __repr__(self) -> str:
        return f"pointer<{'x'.join(map(str, (*self.shape, self.element)))}>"

    def __eq__(self, other: object) -> Any:
        if other is None:
            return False
        raise TypeError("a pointer is compared: arrays have no addresses in JAX")

    __hash__ = object.__hash__


@functools.partial(jax.tree_util.register_dataclass, data_fields=["offset"], meta_fields=["buffer", "element", "own"])
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class Pointer(BasePointer):
    """Address in a buffer: the number of elements, of type `element`, from its start.

    `own` is the type of the array where its bits are read as another, else None.
    """

    buffer: int
    element: types.dtype
    offset: Tensor
    own: types.dtype | None = None

    @property
    def shape(self) -> Shape:
        """The shape of the block of addresses."""
        return self.offset.shape

    def at(self, offset: Tensor) -> Pointer:
        """Return the pointer with another offset."""
        return dataclasses.replace(self, offset=offset)

    def moved(self, offset: Tensor) -> Pointer:
        """Return the pointer moved by a number of elements."""
        return self.at(add(self.offset, offset))

    def to(self, kind: types.TypeLike, fp_downcast_rounding: object = None, bitcast: bool = False) -> Pointer:
        """Return the pointer as one to another type: loads and stores reinterpret the bits of the array.

        Raises:
            TypeError: `kind` is not a pointer's type, or memory cannot be read in it (`reinterpreted`).
        """
        kind = types.as_type(kind)
        element = types.as_type(kind.element_ty) if isinstance(kind, types.pointer_type) else kind
        if element is kind or isinstance(element, types.pointer_type):
            raise TypeError(f"a pointer to {self.element} is not of type {kind}: arrays have no addresses in JAX")
        return self if element == self.element else reinterpreted(self, element)


@functools.partial(jax.tree_util.register_dataclass, data_fields=["mask", "yes", "no"], meta_fields=[])
@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class SelectedPointer(BasePointer):
    """Selection between two pointers into different arrays: `yes` where `mask` holds, else `no`; see `select`."""

    mask: Tensor
    yes: AnyPointer
    no: AnyPointer

    element = property(lambda self: self.yes.element)
    shape = property(lambda self: self.mask.shape)

    def sides(self, mask: Operand | None) -> Iterator[tuple[AnyPointer, Tensor]]:
        """Yield both pointers with the lanes, of those that `mask` lets through, that they are for."""
        for pointer, lanes in ((self.yes, self.mask), (self.no, logical_not(self.mask))):
            yield pointer, lanes if mask is None else logical_and(mask, lanes)

    def moved(self, offset: Tensor) -> AnyPointer:
        """Return the selection with both pointers moved."""
        return select(self.mask, self.yes.moved(offset), self.no.moved(offset))

    def to(self, kind: types.TypeLike, fp_downcast_rounding: object = None, bitcast: bool = False) -> AnyPointer:
        """Return the selection with both pointers converted."""
        return select(self.mask, self.yes.to(kind), self.no.to(kind))


AnyPointer = Pointer | SelectedPointer


def select(mask: Operand, yes: object, no: object) -> AnyPointer:
    """Return the pointer `yes` where a mask holds, else `no`.

    Raises:
        TypeError: one is not a pointer, or they are pointers to different types.
    """
    if not (isinstance(yes, AnyPointer) and isinstance(no, AnyPointer)):
        raise TypeError(f"a pointer or a value is selected: {yes!r} or {no!r}")
    if yes.element != no.element:
        raise TypeError(f"pointers to different types are selected: {yes!r} or {no!r}")
    mask = as_mask(mask)
    if isinstance(yes, Pointer) and isinstance(no, Pointer) and yes.buffer == no.buffer:
        return yes.at(where(mask, yes.offset, no.offset))
    shape = np.broadcast_shapes(mask.shape, yes.shape, no.shape)
    return SelectedPointer(*(jax.tree.map(lambda tensor: broadcast(tensor, shape), part) for part in (mask, yes, no)))


def _offset(value: Operand) -> Tensor:
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
