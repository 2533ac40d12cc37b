"""The storage of a tensor as `storage()` and `untyped_storage()` return it, and memory that becomes longer."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from fnjax._torch_ops.registry import KNOWN
from fnjax.torch.errors import NotSupported
from fnjax.torch.functions.creation import uninitialised
from fnjax.torch.memory import layout as layouts
from fnjax.torch.memory.tensor import Derived, Tensor
from fnjax.torch.recording.graph import compute
from fnjax.torch.recording.journal import refuse_in_branch


class TensorStorage:
    """Tensor's storage as `storage()` returns it, or `untyped_storage()`: its address and its size."""

    def __init__(self, tensor: Tensor, *, typed: bool) -> None:
        self._tensor, self._memory, self._itemsize, self._typed = tensor, tensor.memory, tensor.dtype.itemsize, typed

    def data_ptr(self) -> int:
        """Return a number that is equal for tensors that share memory."""
        return id(self._memory)

    def nbytes(self) -> int:
        """Return the bytes of all elements."""
        return self._memory.layout.size * self._itemsize

    def size(self) -> int:
        """Return the number of elements, or of bytes."""
        return self._memory.layout.size if self._typed else self.nbytes()

    __len__ = size

    def to_tensor(self) -> Tensor:
        """Return all elements, in the order of memory."""
        if not self._typed:
            raise NotSupported("the bytes of a tensor's storage", "use x.storage(), or x.view(torch.uint8)")
        return Tensor.over(self._memory, layouts.show_flat(self._memory.layout), self._tensor.dtype)

    def tolist(self) -> list[Any]:
        """Return the elements as Python numbers."""
        found: list[Any] = self.to_tensor().tolist()
        return found

    def __getitem__(self, index: int) -> Any:
        return self.to_tensor()[index].item()

    def __setitem__(self, index: Any, value: Any) -> None:
        self.to_tensor()[index] = value

    def resize_(self, size: int) -> None:
        """Extend the memory; do nothing for size 0, since JAX frees memory that is not read any more.

        Raises:
            NotSupported: the new size is smaller, and not zero.
        """
        if size not in range(1, self.size()):
            extend_memory(self._tensor, size if self._typed else -(-size // self._itemsize))
            return
        raise NotSupported("resize_ of a tensor's storage to a smaller size", "make a new tensor")

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise NotSupported(f"{name} of a tensor's storage", "use methods of the tensor")


def extend_memory(tensor: Tensor, size: int) -> None:
    """Extend a tensor's memory to a size if it is smaller; the new elements are uninitialised."""
    memory = tensor.memory
    whole = memory.layout
    missing = size - layouts.extent_of(whole.shape, whole.strides)
    if missing <= 0:
        return
    if isinstance(memory, Derived):
        raise NotSupported("resize_ of a view that is computed", "resize a clone")
    if memory.numpy:
        raise RuntimeError("Trying to resize storage that is not resizable")
    refuse_in_branch(tensor.memory.serial, "resize_ beyond its memory")

    def extend(x: Any) -> tuple[Any, ...]:
        return (jnp.pad(layouts.flatten(x, whole), (0, missing), constant_values=uninitialised.get()),)

    memory.value = compute(extend, [memory.value], "ResizeBackward")[0]
    memory.layout, memory.version = layouts.make_layout((size,)), memory.version + 1


KNOWN["torch.Tensor._version"] = property(lambda self: self.memory.version)
KNOWN["torch.Tensor.untyped_storage"] = lambda self: TensorStorage(self, typed=False)
KNOWN["torch.Tensor.storage"] = lambda self: TensorStorage(self, typed=True)
