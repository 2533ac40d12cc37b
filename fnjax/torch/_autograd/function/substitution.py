"""Other values of tensors within a block, in one thread: other threads may use the same tensors and modules."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from fnjax.torch.memory.numpy_sharing import VALUE, VERSION, NumpyMemory
from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.recording.blocks import setting
from fnjax.torch.recording.graph import Value
from fnjax.torch.recording.storage import Storage, Substitute, substitutes


class _Shared(NumpyMemory):
    """Storage that was replaced in some block; it keeps this class after the block."""

    __slots__ = ()

    @property
    def stand_in(self) -> Storage | None:
        """The storage that replaces this one in the present block, or None."""
        found = substitutes.get().get(id(self))
        return None if found is None else found.storage

    @property
    def value(self) -> Value:
        """The value of the replacement in the present block, else the storage's own."""
        stand_in = self.stand_in
        if stand_in is not None:
            return stand_in.value
        return VALUE.__get__(self) if self.numpy is None else self.read()

    @value.setter
    def value(self, new: Value) -> None:
        stand_in = self.stand_in
        if stand_in is not None:
            stand_in.value = new
        elif self.numpy is None:
            VALUE.__set__(self, new)
        else:
            self.write(new)

    @property
    def version(self) -> int:
        """The number of writes; replacements never have the same number as the storage or each other."""
        stand_in = self.stand_in
        if stand_in is not None:
            return stand_in.version
        _ = self.value
        return VERSION.__get__(self)

    @version.setter
    def version(self, new: int) -> None:
        stand_in = self.stand_in
        if stand_in is not None:
            stand_in.version = new
        else:
            VERSION.__set__(self, new)


def substituting() -> AbstractContextManager[Any]:
    """Limit the effect of `substitute` to a block, and to this thread."""
    return setting(substitutes, dict(substitutes.get()))


def substitute(tensor: Tensor, array: Any, requires_grad: bool, *, collect: bool = False) -> None:
    """Replace the array of a tensor until the end of the innermost `substituting` block.

    Args:
        tensor: the tensor, which covers all of its storage.
        array: an array of the same shape.
        requires_grad: whether it requires grad.
        collect: whether `.grad` is None at the beginning of the block, and restored after it.
    """
    storage = tensor.memory
    value = Value(array, requires_grad=requires_grad, leaf=tensor if requires_grad else None)
    stand_in = Storage(value, storage.layout)
    stand_in.version = stand_in.serial << 32  # no version that the memory has elsewhere: tensors keep what they showed
    substitutes.get()[id(storage)] = Substitute(stand_in, {id(tensor): None} if collect else None)
    storage.__class__ = _Shared  # it has the same slots
