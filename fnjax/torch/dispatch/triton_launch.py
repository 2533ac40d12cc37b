"""Launches of Triton kernels on tensors: what a kernel stores is written into the tensors that it was passed."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from fnjax.torch.deferred.number import Number
from fnjax.torch.memory import layout as layouts
from fnjax.torch.memory.tensor import Tensor
from fnjax.torch.recording.graph import Value, compute
from fnjax.torch.recording.journal import note_launch
from fnjax.torch.recording.storage import Storage
from fnjax.triton.containers import iter_members
from fnjax.triton.host_code import viewing
from fnjax.triton.tools.tensor_descriptor import TensorDescriptor


def launch(kernel: Any, grid: Any, args: Sequence[Any], named: Mapping[str, Any]) -> None:
    """Run `kernel[grid](*args, **named)` with tensors among the arguments.

    A kernel gets a tensor's storage from the tensor's offset on, so that the strides that a launcher passes are valid,
    and a pointer to `x[0]` reaches the other rows. If it stores to several tensors of one storage, only their elements
    change.

    Args:
        kernel: a kernel of fnjax.triton.
        grid: the grid, as in Triton.
        args: tensors, numbers, tuples of these.
        named: keyword arguments, likewise, and options of the compiler.
    """
    note_launch()
    tensors = [t for x in iter_members((*args, *named.values())) if isinstance(t := _base(x), Tensor)]
    by_name = {**dict(zip(kernel.arg_names, args, strict=False)), **named}
    targets = [_base(x) for name in kernel.stores for x in iter_members(by_name.get(name))]
    stored = {id(t): t for t in targets if isinstance(t, Tensor)}
    shared = Counter(id(t.memory) for t in stored.values())
    plain: set[int] = set()
    wholes: dict[int, Tensor] = {}  # for a tensor, one that covers all of its storage
    for t in tensors:
        if _is_whole(t) or (id(t) in stored and shared[id(t.memory)] > 1 and layouts.is_contiguous(t.layout)):
            plain.add(id(t))
        elif id(t) in stored and shared[id(t.memory)] == 1:
            wholes[id(t)] = Tensor.over(t.memory, t.memory.layout, t.dtype, detached=t._detached)

    def on_arrays(*arrays: Any) -> tuple[Any, ...]:
        given = {id(t): a if id(t) in plain else _flatten(t, a) for t, a in zip(tensors, arrays, strict=True)}
        shown = {id(given[id(t)]): _show(t, given[id(t)], id(t) in plain) for t in tensors}

        def enter(x: Any) -> Any:
            if isinstance(x, TensorDescriptor):
                return dataclasses.replace(x, base=enter(x.base))
            if isinstance(x, (tuple, list)):
                items = list(map(enter, x))
                return type(x)(*items) if hasattr(x, "_fields") else type(x)(items)
            return given[id(x)] if isinstance(x, Tensor) else x.array if type(x) is Number else x

        with viewing(lambda x: shown.get(id(x), x), _take):
            found = kernel[grid](*map(enter, args), **{k: enter(v) for k, v in named.items()})
        return tuple(
            r.reshape(t.layout.shape) if id(t) in plain else _leave(t, wholes.get(id(t), t), r)
            for t, r in zip(targets, iter_members(found), strict=True)
            if isinstance(t, Tensor)
        )

    values = compute(on_arrays, [t.value if id(t) in plain else _value_of(t) for t in tensors], kernel.__name__)
    for target, value in zip([t for t in targets if isinstance(t, Tensor)], values, strict=True):
        wholes.get(id(target), target).assign(value)


def _base(x: Any) -> Any:
    return x.base if isinstance(x, TensorDescriptor) else x


def _is_whole(x: Tensor) -> bool:
    """Return whether a tensor covers its storage in the order of memory; True for a component of complex elements."""
    return bool(x.part) or (layouts.is_contiguous(x.layout) and x.layout.size == x.memory.layout.size)


def _show(x: Tensor, array: jax.Array, plain: bool) -> Tensor:
    """Return a pointer's array as the tensor that launch hooks get; the kernel sees their writes to it."""
    whole = layouts.make_layout(array.shape)
    layout = whole if plain else np.lib.stride_tricks.as_strided(whole, x.layout.shape, x.layout.strides)
    return Tensor.over(Storage(Value(array), whole), layout, x.dtype)


def _take(x: Any) -> Any:
    return x.memory.value.array if isinstance(x, Tensor) else x


def _value_of(x: Tensor) -> Value:
    """Return the value of a tensor's storage; without gradient for a detached tensor."""
    value = x.memory.value
    return Value(jax.lax.stop_gradient(value.array)) if x._detached else value


def _flatten(x: Tensor, array: jax.Array) -> jax.Array:
    """Return a storage's elements from a tensor's offset on."""
    return layouts.flatten(array, x.memory.layout)[layouts.offset_of(x.layout) :]


def _leave(x: Tensor, target: Tensor, result: jax.Array) -> jax.Array:
    """Return the elements of `target`, on the same storage as `x`, after a kernel has written to the pointer of `x`."""
    memory, whole = x.memory.value.array, layouts.show_flat(x.memory.layout)
    shown = whole[layouts.offset_of(x.layout) :]
    flat = layouts.write(layouts.flatten(memory, x.memory.layout), shown, whole, result)
    return layouts.read(flat, target.layout, whole)
