"""Other values of tensors in a block: the tensors and the modules that hold them belong to other threads, too."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from fnjax.torch.memory.numpy_sharing import VALUE, VERSION, NumpyMemory
from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.recording.graph import Storage, Substitute, Value, substitutes


class _Shared(NumpyMemory):
    """Memory that has another value in some blocks; it stays of this class."""

    __slots__ = ()

    @property
    def stand_in(self) -> Storage | None:
        """The memory in place of this one in the block, or None."""
        found = substitutes.get().get(id(self))
        return None if found is None else found.storage

    @property
    def value(self) -> Value:
        """The value of the block, or that of all others."""
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
        """The number of writes; never that of another block."""
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


@contextlib.contextmanager
def substituting() -> Iterator[None]:
    """Let `substitute` hold until the end of the block, in this thread only."""
    token = substitutes.set(dict(substitutes.get()))
    try:
        yield
    finally:
        substitutes.reset(token)


def substitute(tensor: Tensor, array: Any, requires_grad: bool, *, collect: bool = False) -> None:
    """Give a tensor that shows all of its memory another array within the block around it.

    Args:
        tensor: the tensor.
        array: of the same shape.
        requires_grad: whether it requires grad.
        collect: whether its `.grad` begins as None, and is forgotten after the block.
    """
    storage = tensor.memory
    value = Value(array, requires_grad=requires_grad, leaf=tensor if requires_grad else None)
    stand_in = Storage(value, storage.layout)
    stand_in.version = stand_in.serial << 32  # no version that the memory has elsewhere: tensors keep what they showed
    substitutes.get()[id(storage)] = Substitute(stand_in, {id(tensor): None} if collect else None)
    storage.__class__ = _Shared  # it has the same slots
