"""Memory that ctx keeps: backward finds in it what was written there after forward, or an error."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from fnjax._primitives.jax_internals import is_in_scope
from fnjax.torch._autograd.arrays import kind_of, wrap_array
from fnjax.torch.errors import NotSupported
from fnjax.torch.memory.layout import are_same, offset_of, show_flat
from fnjax.torch.memory.strides import strides_of
from fnjax.torch.memory.tensor import Tensor, is_known
from fnjax.torch.recording.graph import BRANCH, RECORDS_GRADIENTS, Value
from fnjax.torch.recording.storage import Guard, LostValue, OverwrittenValue, Storage, find_root, substitutes


class Memory(NamedTuple):
    """Memory of an argument or result of a call, or of another tensor that ctx keeps.

    Attributes:
        guards: the flags that the next write to it sets; several where a traced test decides which memory it is.
        layout: the layout of the tensor.
        whole: the layout of the storage; None while functional_call has replaced its value.
        part: the component of complex elements that the tensor is: "real", "imag" or "".
        storage: a reference to the memory; None if a traced test decides which one it is.
    """

    guards: tuple[Guard, ...]
    layout: Any
    whole: Any
    part: str
    storage: weakref.ref[Storage] | None

    @property
    def is_written(self) -> bool:
        """True after a write."""
        return any(guard.is_lost for guard in self.guards)

    def read(self, own: Any) -> Any:
        """Return the tensor's array after a write; None where it is not known, and for a second derivative.

        Args:
            own: the tensor's dtype.
        """
        find = self.guards[0].storage if len(self.guards) == 1 else None
        storage = None if find is None else find()
        if storage is None or storage.layout is not self.whole or isinstance(storage.value, LostValue):
            return None
        if RECORDS_GRADIENTS.get() or not is_in_scope(storage.value.array):
            return None
        return Tensor.over(storage, self.layout, own, self.part).array

    def write(self, tensor: Tensor) -> bool:
        """Write what backward wrote to its own copy of the tensor; return False where JAX traces it, or it is gone."""
        storage = None if self.storage is None else self.storage()
        if storage is None or storage.layout is not self.whole or isinstance(storage.value, LostValue):
            return False
        if not (is_known(storage.value.array) and is_known(tensor.array)):
            return False
        Tensor.over(storage, self.layout, tensor.dtype, self.part).assign(Value(tensor.array))
        return True


def guard_memory(tensor: Tensor) -> Memory:
    """Return the memory of a tensor, which a guard watches from now on."""
    roots, replaced, branch = tensor.memory.roots, substitutes.get(), BRANCH.get()
    for root in roots:
        if root.guard is None or root.guard.is_lost:
            root.guard = Guard()
            root.guard.branches = {branch}
        root.guard.branches.add(branch)
    whole = None if any(id(root) in replaced for root in roots) else tensor.memory.layout
    guards = tuple(r.guard for r in roots if r.guard is not None)
    storage = weakref.ref(tensor.memory) if roots == [tensor.memory] else None
    return Memory(guards, tensor.layout, whole, tensor.part, storage)


class Kept(NamedTuple):
    """Tensor on ctx that shares memory with an argument or result of the call, or has memory from elsewhere.

    Attributes:
        at: the index of the tensor among the tensors on ctx.
        owner: the index of the argument or result; None if it is none of both.
        memory: its memory, if it has no owner.
        view: the index of its first element in the memory of the owner, shape and strides; None if not known.
    """

    at: int
    owner: int | None
    memory: Memory | None
    view: tuple[int, tuple[int, ...], tuple[int, ...]] | None


def list_kept(
    on_ctx: Sequence[Tensor],
    roots: Sequence[Storage],
    owners: dict[int, int],
    arguments: Sequence[Any],
    results: Sequence[Any],
) -> tuple[Kept, ...]:
    """Return the tensors on ctx whose memory others may write to after forward.

    Args:
        on_ctx: the tensors on ctx.
        roots: their storages.
        owners: by the ids of their storages the indices of arguments and results.
        arguments: the arguments.
        results: the results, which have the indices -1, -2, ...
    """
    found: list[Kept] = []
    for at, (t, root) in enumerate(zip(on_ctx, roots, strict=True)):
        owner = owners.get(id(root))
        if owner is None:
            found.append(Kept(at, None, guard_memory(t), None))
            continue
        of = arguments[owner] if owner >= 0 else results[-1 - owner]
        is_view = t is of or (t.memory is root is of.memory and not t.part and are_same(of.layout, root.layout))
        offset = 0 if t is of else offset_of(t.layout)
        view = (offset, t.layout.shape, t.layout.strides) if is_view else None
        found.append(Kept(at, owner, None, view))
    return tuple(found)


def read_written(
    kept: Sequence[Kept], memories: dict[int, Memory], on_ctx: Sequence[Tensor], saved: Sequence[Any], *, is_sure: bool
) -> list[Any]:
    """Give the tensors of backward's ctx the values that were written to their memory after forward; return the saved.

    A read of one that is not known raises, and so does one of a tensor of `save_for_backward`, as in PyTorch.

    Args:
        kept: the tensors on ctx that may be written to.
        memories: the memory of the arguments and results, by their indices.
        on_ctx: the tensors on ctx.
        saved: those of `save_for_backward`.
        is_sure: whether PyTorch runs this backward, too.
    """
    saved = [*saved]
    places = [i for i, t in enumerate(saved) if issubclass(type(t), Tensor)]
    for at, owner, own, view in kept:
        memory, t = own if owner is None else memories.get(owner), on_ctx[at]
        if memory is None or not memory.is_written:
            continue
        if at < len(places):  # it may be a parameter itself
            value = OverwrittenValue(is_sure and any(guard.is_certain for guard in memory.guards))
            saved[places[at]] = Tensor.over(Storage(value, t.layout), t.layout, t.dtype)
            continue
        if any(g.storage is not None and g.storage() is find_root(t.memory) for g in memory.guards):
            continue  # the memory itself
        array = memory.read(t.dtype) if owner is None or view is not None else None
        if array is None:
            t.memory, t.part = Storage(LostValue(), t.layout), ""
        else:
            made = wrap_array(array, kind_of(t)._replace(strides=strides_of(memory.layout)))
            t.memory, t.layout, t.part = made.memory, made.layout, ""
            t.memory.shared = "a write in backward to a tensor on ctx that was written to after forward"
            if view is not None:
                layout = np.lib.stride_tricks.as_strided(show_flat(made.layout)[view[0] :], *view[1:])
                t.layout = made.layout if are_same(layout, made.layout) else layout
        t._cached = None
    return saved


def read_reachable(tensor: Tensor, memory: Memory | None, array: Any) -> Any:
    """Return the present array of a tensor that backward reaches by itself, where it was written to after forward.

    None where that is not known.

    Args:
        tensor: the tensor.
        memory: its memory at the call.
        array: its array at the call.
    """
    if memory is None or not memory.is_written or memory.whole is None or RECORDS_GRADIENTS.get():
        return array
    value = tensor.value
    return None if isinstance(value, LostValue) or not is_in_scope(value.array) else value.array


def lose_ended(tensors: Sequence[Tensor], *, are_inputs: bool = True) -> None:
    """Make reads of tensors raise whose arrays belong to a trace that has ended: they were put on ctx after forward.

    Raises:
        NotSupported: a second derivative may read one that requires grad, and not all are inputs of the call.
    """
    replaced = substitutes.get()
    for root in (root for t in tensors for root in t.memory.roots if not isinstance(root.value, LostValue)):
        if not is_in_scope(root.value.array):
            root.value = LostValue()
        elif not are_inputs and RECORDS_GRADIENTS.get() and root.value.requires_grad and id(root) not in replaced:
            raise NotSupported("a second derivative that reads what was put on ctx after forward", "pass it to apply")
