"""Memory that tensors share with NumPy arrays: `x.numpy()` and `torch.from_numpy(a)` of concrete values."""

from __future__ import annotations

import weakref
from typing import Any

import jax.numpy as jnp
import numpy as np

from fnjax.torch.memory import layout as layouts
from fnjax.torch.memory.tensor import Derived, Tensor, is_known
from fnjax.torch.recording.graph import Value
from fnjax.torch.recording.overwrite import overwrite
from fnjax.torch.recording.storage import Storage, substitutes

VALUE, VERSION = (vars(Storage)[name] for name in ("value", "version"))


class _Shown:
    """Owner of memory that NumPy arrays view; it lives as long as such an array."""

    def __init__(self, entries: Any) -> None:
        self.entries, self.__array_interface__ = entries, entries.__array_interface__


class NumpyMemory(Storage):
    """Storage that shares memory with NumPy arrays; each read looks for their writes."""

    __slots__ = ()

    def read(self) -> Value:
        """Return the value, after the writes of NumPy."""
        found: Value = VALUE.__get__(self)
        entries, shown = self.numpy
        if is_known(found.array) and entries.tobytes() != np.asarray(found.array, entries.dtype).tobytes():
            found = overwrite(found, jnp.array(entries, found.array.dtype))
            VALUE.__set__(self, found)
            VERSION.__set__(self, VERSION.__get__(self) + 1)
        if shown is not None and shown() is None:  # no NumPy array of the memory is left
            self.numpy = None
            if type(self) is NumpyMemory:
                self.__class__ = Storage  # type: ignore[assignment] # it has the same slots
        return found

    def write(self, new: Value) -> None:
        """Set the value, and write it into NumPy's memory."""
        VALUE.__set__(self, new)
        if is_known(new.array):
            np.copyto(self.numpy[0], np.asarray(new.array, self.numpy[0].dtype))

    value = property(read, write)

    @property
    def version(self) -> int:
        """The number of writes."""
        _ = self.value
        return VERSION.__get__(self)

    @version.setter
    def version(self, new: int) -> None:
        VERSION.__set__(self, new)


def to_numpy(tensor: Tensor) -> Any:
    """Return a tensor with concrete values as a NumPy array; both share memory."""
    found = substitutes.get().get(id(tensor.memory))
    memory = tensor.memory if found is None else found.storage
    own = tensor.dtype.numpy
    if isinstance(memory, Derived) or not is_known(memory.value.array) or tensor.part:
        return np.asarray(tensor.array, own)
    shown = memory.numpy[1]() if memory.numpy and memory.numpy[1] else None
    if shown is None:
        entries = memory.numpy[0] if memory.numpy else _copy(memory, own)
        shown = _Shown(entries)
        if not memory.numpy:
            _share(memory, entries, shown)
    extent = layouts.extent_of(memory.layout.shape, memory.layout.strides)
    flat = np.lib.stride_tricks.as_strided(np.asarray(shown), (extent,), (own.itemsize,))
    flat = flat[layouts.offset_of(tensor.layout) :]
    strides = [s * flat.itemsize for s in tensor.layout.strides]
    return np.lib.stride_tricks.as_strided(flat, tensor.layout.shape, strides)


def _copy(memory: Storage, own: Any) -> Any:
    """Return a NumPy array of a storage's elements, with its strides."""
    whole = memory.layout
    entries = np.empty(layouts.extent_of(whole.shape, whole.strides), own)
    shown = np.ndarray(whole.shape, own, entries, 0, [s * entries.itemsize for s in whole.strides])
    shown[...] = memory.value.array
    return shown


def _share(memory: Storage, entries: Any, shown: _Shown | None) -> None:
    memory.numpy = entries, None if shown is None else weakref.ref(shown)
    if not isinstance(memory, NumpyMemory):
        memory.__class__ = NumpyMemory


def share(tensor: Tensor, entries: Any) -> Tensor:
    """Make a new tensor share memory with the NumPy array whose elements it has, and return it.

    Raises:
        ValueError: the array has strides that a tensor cannot have (PyTorch's message).
    """
    if any(s < 0 for s in entries.strides):
        raise ValueError(
            "At least one stride in the given numpy array is negative, and tensors with negative strides are not "
            "currently supported. (You can probably work around this by making a copy of your array  with "
            "array.copy().) "
        )
    if any(s % entries.itemsize for s in entries.strides):
        raise ValueError(
            "given numpy array strides not a multiple of the element byte size. Copy the numpy array first."
        )
    strides = [s // entries.itemsize for s in entries.strides]
    tensor.layout = tensor.memory.layout = layouts.make_layout(entries.shape, strides)
    known = is_known(tensor.array)  # what is traced cannot see what NumPy writes when the program runs
    if known and entries.flags.writeable:
        _share(tensor.memory, entries, None)
    return tensor
